"""The training loop: the same command begins a run, continues it, and finds it finished."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from scse.config import RunOptions, TrainConfig, data_config
from scse.data import Corpus, open_corpus
from scse.devices import autocast, compiles, wide
from scse.errors import RunFailure, UserError
from scse.evaluation import perplexity_over_depths
from scse.files import expand
from scse.flops import step_flops
from scse.layout import CHECKPOINTS, MODEL
from scse.measure import clock, elapsed
from scse.model import LoopedLM
from scse.nn.without_storage import matrices_without_storage
from scse.processes import World, world
from scse.progress import Meter, progress
from scse.runs.checkpoint import Checkpoint, CheckpointStore, Saving, Validation
from scse.runs.folder import Metrics, MetricsSink, NoMetrics, begin_or_continue, locked, stored_precision
from scse.runs.parent import inherited_tokenizer, starting_checkpoint
from scse.runs.restoring import collect, export_model, is_exported, refuse_misfit, restore
from scse.runs.shards import is_shard
from scse.signals import stops_ask
from scse.training.batches import batch_source
from scse.training.distributed import accumulating, distribute, gathered, shards, shared_parts
from scse.training.feed import Feed
from scse.training.objectives import Objective, check_run, steps_beyond
from scse.training.optimiser import learning_rate, make_optimiser, resolve_precision
from scse.training.speed import matmul_rate
from scse.training.streams import dropout_seed, initialisation_seed, loop_depths

log = logging.getLogger("scse")


@dataclass(frozen=True)
class Ended:
    """How an invocation ended: at which step, whether the run is complete, whether this process speaks for it.

    `stop_requested` can be true of a complete run too: the request came during its last step.
    """

    step: int
    finished: bool
    validation: Validation | None
    leads: bool = True
    stop_requested: bool = False

    @property
    def validation_ppl(self) -> float | None:
        return self.validation.ppl if self.validation else None


def train(config: TrainConfig, folder: str | Path, options: RunOptions | None = None) -> Ended:
    """Train to the end, from the newest good checkpoint of `folder` if there is one."""
    folder = expand(folder)
    options = options or RunOptions()
    check_run(config)
    with world(options.device) as here, locked(folder) if here.leads else contextlib.nullcontext():
        precision = here.from_leader(stored_precision(folder))
        if config.precision != "auto":
            precision = config.precision
        config = replace(config, precision=precision or resolve_precision("auto", here.device))
        corpus = open_corpus(
            data_config(config, options),
            progress=here.leads and not options.quiet,
            tokenizer=inherited_tokenizer(config, folder, options),
        )
        return Trainer(config, options, folder, corpus, here).run()


class Trainer:
    """One process's part of a run."""

    def __init__(self, config: TrainConfig, options: RunOptions, folder: Path, corpus: Corpus, here: World) -> None:
        self.options, self.folder, self.world = options, folder, here
        train_split, self.validation = corpus.split("train"), corpus.split("validation")
        digests = {s.name: s.digest for s in (train_split, self.validation)} | {"tokenizer": corpus.tokenizer.digest}
        if len(self.validation.tokens) < 2:
            raise UserError(f"the validation split of '{corpus.name}' has fewer than 2 tokens; give it more text")
        if config.warmup >= config.steps and here.leads:
            about = "the warm-up of %d steps does not end within the %d of the run; --set warmup=N sets another"
            log.warning(about, config.warmup, config.steps)
        self.config = config
        self.micro_batches = shared_parts(config, folder, here)
        self.batches = batch_source(corpus, self.config)
        self.feed = Feed(self.batches, here.device)
        self.sharded = shards(here, options.strategy)
        with matrices_without_storage() if self.sharded else contextlib.nullcontext():
            self.model = LoopedLM(self.config.model, seed=initialisation_seed(self.config.seed)).train()
        if not self.sharded:
            self.model.to(here.device)
        if compiles(options.compile, here.device):
            self.model.compile_step()
        self.store = CheckpointStore(folder / CHECKPOINTS, options.keep)
        self.start = starting_checkpoint(config, options) if not self.store.steps() else None
        if self.start is not None:
            refuse_misfit(self.start.folder, self.model)
        # Only now, when text and memory are known to suffice: a run that cannot start leaves nothing behind.
        if here.leads:
            begin_or_continue(folder, config, digests, self.micro_batches, self.model.compiled)
        here.from_leader(None)
        self.objective = Objective(self.model, config.objective, config.backprop, options.recompute)
        self.module = distribute(self.objective, options.strategy, here, config.precision)
        if self.sharded:
            from scse.training.sharding import give_storage

            give_storage(self.model, here.device)
        self.optimiser = make_optimiser(self.module, self.config)
        if here.leads and not corpus.tokenizer.is_saved(folder / MODEL):
            corpus.tokenizer.save(folder / MODEL)
        self.rate = 0.0
        self.last: Validation | None = None
        self.saved = time.perf_counter()
        self.saving: Saving | None = None
        # An accelerator computes while its host writes; a CPU would share its memory and its time with the writing.
        self.background = dist.new_group(backend="gloo") if self.sharded and here.device.type != "cpu" else None

    def run(self) -> Ended:
        if self.world.from_leader(self.world.leads and not self.store.steps() and is_exported(self.folder / MODEL)):
            return Ended(self.config.steps, True, self.last, self.world.leads)  # its checkpoints have been deleted
        step = self._resume()
        if step >= self.config.steps:
            self._export()
            return Ended(step, True, self.last, self.world.leads)
        self.rate = matmul_rate(getattr(torch, self.config.precision), self.world.device)
        with stops_ask() as stop, self._metrics(step) as metrics, self._progress(step) as meter:
            while step < self.config.steps:
                metrics.write(self._step(step, meter))
                step += 1
                stopping, late = self.world.any(stop.requested, self._save_is_late())
                self._milestones(step, stopping or late, metrics)
                if stopping and step < self.config.steps:
                    self._wait_until_saved()
                    return Ended(step, False, self.last, self.world.leads, True)
        self._export()
        return Ended(step, True, self.last, self.world.leads, stop.requested)

    def _step(self, step: int, meter: Meter) -> dict[str, float]:
        """One optimiser step; the metrics row describes the state after it."""
        begin = clock(self.world.device)
        config, loops = self.config, self._loops(step)
        mean_loops = loops if isinstance(loops, int) else float(loops.mean())
        total = self._accumulate_gradients(step, loops)
        size = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.config.clip)
        size = size.full_tensor() if is_shard(size) else size
        if step + 1 < config.steps:
            self.feed.prepare(config.steps_before + step + 1, self._loops(step + 1))
        # All that the host asks of the device in a step.
        loss, norm = torch.stack([total, size.to(total)]).tolist()
        loss /= self.batches.counted
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RunFailure(self._divergence(step, mean_loops, loss, norm))
        rate = learning_rate(config, step)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

        seconds = elapsed(begin, self.world.device)
        tokens = self.config.tokens_per_step
        share = self._flops(loops) / seconds / (self.rate * self.world.size)
        place = f"{config.model.family} {step + 1}/{config.steps}"
        meter.describe(f"{place} loss {loss:.3f} T={mean_loops:g} {share:.0%} peak")
        meter.advance(tokens)
        row = {"step": step + 1, "loss": loss, "loops": mean_loops, "lr": rate, "grad_norm": norm}
        return row | {"seconds": seconds, "tokens_per_second": tokens / seconds, "matmul_share": share}

    def _loops(self, step: int) -> int | np.ndarray:
        """The depth of a step, or of each of its sequences."""
        return self.model.recurrence.core.trained_depth or loop_depths(self.config, self.config.steps_before + step)

    def _flops(self, loops: int | np.ndarray) -> float:
        """Matrix products of a step at a depth, or at one for each sequence."""
        extra = steps_beyond(self.config.objective)
        return float(np.mean([step_flops(self.config, int(depth), extra) for depth in np.atleast_1d(loops)]))

    def _accumulate_gradients(self, step: int, loops: int | np.ndarray) -> Tensor:
        """Gradients of the mean loss over the whole batch, this process working on its share; returns the sum of all
        losses, on the device."""
        config, here = self.config, self.world
        position = config.steps_before + step  # a run goes on in the streams of its parent
        depths = [loops] * self.micro_batches if isinstance(loops, int) else np.array_split(loops, self.micro_batches)
        mine = range(here.rank, self.micro_batches, here.size)
        parts = self.feed.sent(self.feed.batch(position, loops), self.micro_batches, mine)
        total = torch.zeros((), dtype=wide(here.device), device=here.device)
        for index, (ids, targets) in zip(mine, parts, strict=True):
            torch.manual_seed(dropout_seed(config.seed, position, index))
            with accumulating(self.module, last=index == mine[-1]):
                with autocast(config.precision, here.device):
                    value = self.module(ids, targets, depths[index])
                # Wrappers average over processes; the loss is a mean over the targets of all of them.
                (value * (here.size / self.batches.counted)).backward()
            total += value.detach()
        return here.summed(total)

    def _save_is_late(self) -> bool:
        """Whether the newest checkpoint is older than the options allow, by the leader's clock."""
        return self.world.leads and elapsed(self.saved) >= 60 * self.options.checkpoint_minutes

    def _milestones(self, step: int, saving: bool, metrics: MetricsSink) -> None:
        """Validation and checkpoints, where they are due; a checkpoint also where it is asked for."""
        due = step == self.config.steps or step % self.options.checkpoint_every == 0
        validated = due or step % self.options.eval_every == 0
        if validated:
            self.last = self._validate()
            metrics.write({"step": step, "validation_ppl": self.last.ppl, "validation_loops": self.last.loops})
        if due or saving:
            self._save(step, self.last if validated else None, interim=not due)

    def _save(self, step: int, validation: Validation | None, interim: bool) -> None:
        tensors = collect(self.model, self.optimiser)
        if self.sharded:
            self._wait_until_saved()
            self.saving = self.store.save_shards(step, tensors, validation, interim, self.background)
        elif self.world.leads:
            self.store.save(step, tensors, validation, interim=interim)
        self.saved = time.perf_counter()

    def _wait_until_saved(self) -> None:
        """A checkpoint that is written in the background is on the disk after this."""
        if self.saving is not None:
            self.saving.wait()
        self.saving = None

    def _validate(self) -> Validation:
        """Perplexity on the first windows of the validation split."""
        loops = self.options.eval_loops or self.config.max_loops
        with gathered(self.module), autocast(self.config.precision, self.world.device):
            ppl = math.nan
            if self.world.leads or self.sharded:
                (result,) = perplexity_over_depths(
                    self.model, self.validation.tokens, [loops], limit=self.options.eval_windows
                )
                ppl = result.ppl
            return Validation(float(self.world.from_leader(ppl)), loops)

    def _resume(self) -> int:
        """Load the newest good checkpoint, or the parent's; the step to go on from."""
        before = self.config.steps_before
        checkpoint = self.world.from_leader(self._newest() if self.world.leads else None)
        if checkpoint is None:
            start = self.start or starting_checkpoint(self.config, self.options)
            if start is not None:
                restore(start, self.model, self.optimiser, before)
            elif self.sharded:
                from scse.training.sharding import draw

                draw(self.model, initialisation_seed(self.config.seed))
            return 0
        restore(checkpoint, self.model, self.optimiser, before + checkpoint.step)
        self.last = checkpoint.validation
        if self.world.leads and checkpoint.step < self.config.steps:
            log.info("continuing %s from step %d", self.folder, checkpoint.step)
        return checkpoint.step

    def _newest(self) -> Checkpoint | None:
        newest = self.store.newest(set_aside=True)
        self.store.prune()  # what a process killed between a checkpoint and this left standing
        return newest

    def _export(self) -> None:
        """The final model, beside its tokenizer, in `model/`."""
        self._wait_until_saved()
        if not self.world.leads or is_exported(self.folder / MODEL):
            return
        final = Checkpoint(self.store.folder / f"step-{self.config.steps}", self.config.steps, None)
        export_model(final, self.config.model, self.folder / MODEL)

    def _divergence(self, step: int, loops: float, loss: float, norm: float) -> str:
        steps = self.store.steps()
        good = f"the last good checkpoint is {self.store.folder / f'step-{steps[0]}'}" if steps else "no checkpoint yet"
        return (
            f"step {step + 1} at depth {loops:g} gave a loss of {loss} and a gradient norm of {norm}; {good}. "
            "Start a new run with a smaller lr or step_scale"
        )

    def _metrics(self, step: int) -> contextlib.AbstractContextManager[MetricsSink]:
        if self.world.leads:
            return Metrics(self.folder, step, self.options.tensorboard)
        return contextlib.nullcontext(NoMetrics())

    def _progress(self, step: int) -> contextlib.AbstractContextManager[Meter]:
        left = (self.config.steps - step) * self.config.tokens_per_step
        shown = self.world.leads and not self.options.quiet
        return progress(f"{self.config.model.family}: training", left, "tok", enabled=shown, amounts=False)
