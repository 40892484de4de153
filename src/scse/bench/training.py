"""The training step against the plain reference: time, share of the machine's matrix-product rate, memory, depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from scse.bench.reference import PlainSCSE
from scse.bench.rows import Row
from scse.config import scale
from scse.devices import CPU, autocast, send
from scse.families import SCSE
from scse.flops import body_flops, head_flops
from scse.machine import keep_freed_memory
from scse.measure import best_seconds, peak_bytes, time_by_kind
from scse.model import LoopedLM, model_config
from scse.progress import SILENT, Meter
from scse.training.optimiser import resolve_precision
from scse.training.speed import measure_rate

MEAN_DEPTHS = (4, 5)  # their mean is the mean of uniform{1, …, 8}
DEPTHS = (1, 2, *MEAN_DEPTHS, 8)
PROFILED_STEPS = 6  # one by kind of kernel, five for their memory


class StepBench:
    """The same batch through our step and through the reference, forward and backward."""

    def __init__(self, scale_name: str, tokens: int, repeats: int, device: torch.device = CPU) -> None:
        self.device = device
        self.shape = scale(scale_name)
        self.repeats = repeats
        # Where bfloat16 is emulated it takes many times as long: two rounds tell enough.
        self.low_repeats = min(2, repeats)
        self.recomputations = max(2, repeats // 2)
        self.meter = SILENT
        self.precision = resolve_precision("auto", device)
        draw = torch.Generator().manual_seed(0)
        size = (max(1, tokens // self.shape.context), self.shape.context + 1)
        self.rows = send(torch.randint(0, self.shape.vocabulary, size, generator=draw), device)
        self.tokens = size[0] * self.shape.context
        self.model = LoopedLM(model_config(SCSE, self.shape)).to(device).train()
        self.reference = PlainSCSE(self.shape).to(device).train()
        self.reference.take(self.model.state_dict())

    def ours(self, loops: int, recompute: bool = False) -> Callable[[], None]:
        """Our step, reusing freed memory as `scse train` does."""
        return lambda: self._step(self.model, lambda x, y: self.model.nll(x, y, loops, recompute), self.precision, True)

    def plain(self, loops: int, precision: str) -> Callable[[], None]:
        """The reference, with memory as PyTorch comes."""
        return lambda: self._step(self.reference, lambda x, y: self.reference(x, y, loops), precision, False)

    def _step(
        self, module: torch.nn.Module, loss: Callable[[Tensor, Tensor], Tensor], precision: str, keep: bool
    ) -> None:
        keep_freed_memory(keep)
        with autocast(precision, self.device):
            value = loss(self.rows[:, :-1], self.rows[:, 1:])
        value.backward()
        module.zero_grad(set_to_none=True)

    @property
    def pieces(self) -> int:
        """How often `run` reports to its meter: every timed step, every profiled one."""
        timed = self.repeats * (len(DEPTHS) + len(MEAN_DEPTHS)) + self.low_repeats * len(MEAN_DEPTHS)
        return timed + 2 * self.recomputations + PROFILED_STEPS

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        self.meter = meter
        dtype = getattr(torch, self.precision)
        rate = measure_rate(dtype, self.device, repeats=8)
        work = {f"ours {t}": self.ours(t) for t in DEPTHS} | {
            f"plain {t}": self.plain(t, "float32") for t in MEAN_DEPTHS
        }
        times = best_seconds(work, self.repeats, meter, self.device)
        low = best_seconds(
            {f"{t}": self.plain(t, "bfloat16") for t in MEAN_DEPTHS}, self.low_repeats, meter, self.device
        )
        rate = max(rate, measure_rate(dtype, self.device, repeats=8))
        yield Row(f"best matrix-product rate, {self.precision}", rate / 1e9, "GFLOP/s")
        step, float32 = (float(np.mean([times[f"{who} {t}"] for t in MEAN_DEPTHS])) for who in ("ours", "plain"))
        yield from self._speed_rows(step, {"float32": float32, "bfloat16": float(np.mean(list(low.values())))}, rate)
        yield from self._memory_rows()
        yield self._slope_row({t: times[f"ours {t}"] for t in DEPTHS})
        yield from self._recompute_rows()

    def _speed_rows(self, step: float, reference: dict[str, float], rate: float) -> Iterator[Row]:
        yield Row(f"our training step, {self.precision}, mean depth 4.5", step, "s")
        for precision, bar in (("float32", 3.2), ("bfloat16", 2.0)):
            seconds = reference[precision]
            yield Row(f"reference step, {precision}", seconds, "s")
            ratio = seconds / step
            yield Row(f"speed-up over the {precision} reference", ratio, "×", f"≥ {bar}", ratio >= bar)
        body = sum(MEAN_DEPTHS) / len(MEAN_DEPTHS) * body_flops(self.shape)
        floor = 3 * self.tokens * (body + head_flops(self.shape)) / rate
        note = f"nothing exact is more than {reference['float32'] / floor:.2f}× the float32 reference"
        yield Row("all matrix products at the best rate", floor, "s", note=note)
        parts = time_by_kind(self.ours(MEAN_DEPTHS[0]), self.device)
        self.meter.advance()
        where = ", ".join(f"{kind} {share:.0%}" for kind, share in parts.items())
        yield Row("share of that rate reached", floor / step, "", "≥ 0.75", floor / step >= 0.75, f"time: {where}")

    def _memory_rows(self) -> Iterator[Row]:
        ours, plain = self._peak(self.ours(5)), self._peak(self.plain(5, "float32"))
        yield Row("peak memory of our step, T = 5", ours / 2**20, "MiB", note=f"reference {plain / 2**20:.0f} MiB")
        yield Row("share of the reference's", ours / plain, "", "≤ 0.25", ours / plain <= 0.25)

    def _peak(self, step: Callable[[], None]) -> int:
        found = peak_bytes(step, self.device)
        self.meter.advance()
        return found

    def _slope_row(self, times: dict[int, float]) -> Row:
        depth, seconds = np.array(list(times)), np.array(list(times.values()))
        slope, start = np.polyfit(depth, seconds, 1)
        residual = seconds - (slope * depth + start)
        fit = 1 - residual.var() / seconds.var()
        return Row("one more loop", float(slope) * 1e3, "ms", "linear", bool(fit >= 0.95), f"R² = {fit:.4f}, T = 1…8")

    def _recompute_rows(self) -> Iterator[Row]:
        work = {"kept": self.ours(8), "recomputed": self.ours(8, True)}
        times = best_seconds(work, self.recomputations, self.meter, self.device)
        ratio = times["recomputed"] / times["kept"]
        yield Row("time with --recompute, T = 8", ratio, "×", "≤ 1.4", ratio <= 1.4)
        low, high, kept = (self._peak(self.ours(t, again)) for t, again in ((2, True), (8, True), (8, False)))
        note = f"T = 8: {kept / 2**20:.0f} MiB without, {high / 2**20:.0f} MiB with"
        yield Row("memory with --recompute, T = 8 over T = 2", high / low, "×", "nearly flat", high / low <= 1.25, note)
