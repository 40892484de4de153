"""The package from Python in a few calls: train a run, open it, evaluate, diagnose, generate, export.

Each function does what the command of the same name does, and keeps its numbers as records of the run; but `generate`
takes the likeliest token unless told how to draw, and goes past the context with a sliding window. They compute where
the run was opened, `open_run(folder, device="cuda", precision="bfloat16")`; a folder is opened on the accelerator where
there is one, in float32. `train` takes `RunOptions(device=…)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scse.config import RunOptions, assemble, protocol
from scse.config.use import DEPTHS, LOOPS, NEW_TOKENS
from scse.errors import UserError
from scse.generation import GREEDY, Depth, Generation, Sampling, continue_text
from scse.runs import Run, open_run
from scse.tasks import TASKS, plainly
from scse.tasks.anchor import BATCHES, STEPS, Diagnose
from scse.tasks.base import Evaluated, Selection
from scse.tasks.columns import loops
from scse.training.trainer import train as train_run

if TYPE_CHECKING:
    from scse.generation import Continuation


def train(
    family: str, out: str | Path, *, protocol_name: str = "mini", options: RunOptions | None = None, **settings: object
) -> Run:
    """Train a family under a protocol and open the run; the same call again continues it.

    `settings` change options of training, of the shape and of the family by name: `steps=1000, lr=1e-3, core=2`.
    """
    config = assemble(family, {**protocol(protocol_name), "precision": "auto", **settings})
    ended = train_run(config, out, options or RunOptions())
    if not ended.finished:
        raise UserError(f"{out} was stopped after step {ended.step} and saved; the same call continues it")
    return open_run(out, options.device if options else "auto")


def evaluate(
    run: Run | str | Path, depths: Sequence[int] = DEPTHS, selection: Selection | None = None, task: str | None = None
) -> Evaluated:
    """What a task, such as one of your own, finds at each depth, all from one unroll. Without a name it is perplexity,
    and on a run that was trained on a problem the accuracy by difficulty."""
    opened, chosen = _opened(run), selection or Selection(show=False)
    if task is None:
        return plainly(opened, chosen, depths).keep(opened)
    return TASKS.find(task).evaluate(opened, chosen, loops(*depths, task=task)).keep(opened)


def diagnose(
    run: Run | str | Path, steps: int = STEPS, selection: Selection | None = None, batches: int = BATCHES
) -> Evaluated:
    """What the recurrence does at its anchor, step by step."""
    opened = _opened(run)
    chosen = selection or Selection(show=False)
    return Diagnose().at(opened, chosen, steps, batches, [0, steps - 1]).keep(opened)


def generate(
    run: Run | str | Path,
    prompt: str,
    *,
    loops: int = LOOPS,
    max_new_tokens: int = NEW_TOKENS,
    threshold: float | None = None,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> Continuation:
    """Continue a text at some depth, or with early exit below a threshold."""
    opened = _opened(run)
    wanted = Generation(Depth(loops, threshold), max_new_tokens, sampling, opened.tokenizer.eot_id, slide=True)
    with opened.inference():
        *_, (last,) = continue_text(opened.model, opened.tokenizer, prompt, wanted, (seed,))
    return last


def export(run: Run | str | Path, folder: str | Path, loops: int = LOOPS) -> Path:
    """A folder that `transformers` loads."""
    from scse.hf.export import export as write

    write(_opened(run), Path(folder), loops, None, None, show=False)
    return Path(folder)


def _opened(run: Run | str | Path) -> Run:
    return run if isinstance(run, Run) else open_run(run)
