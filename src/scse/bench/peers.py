"""A cached token and a training step against `transformers` models of equal FLOPs, and against the machine's limits.

The peers are a GPT-2 and a Llama of our width and vocabulary with as many layers as come nearest to the FLOPs of our T
loops, as they come: in float32 and, where the machine multiplies in it, in bfloat16. Where `transformers` is not
installed, there are no peers to name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch

from scse.bench.rows import Row
from scse.config import scale
from scse.devices import CPU
from scse.families import SCSE
from scse.flops import body_flops, token_flops
from scse.generation import Depth, KVCache, settle
from scse.measure import best_seconds
from scse.model import LoopedLM, model_config
from scse.precision import BFLOAT16, EXACT, INT8
from scse.progress import SILENT, Meter
from scse.training.optimiser import resolve_precision
from scse.training.speed import matmul_rate

LOOPS, CONTEXT, ROWS = 8, 96, (1, 16)
IN_A_ROW = 8  # tokens, as decoding takes them: what a processor keeps of the weights is there for the next one
BAR, SHARE = 2.0, 0.4
BYTES = {EXACT: 4, BFLOAT16: 2, INT8: 1}
READ = 1 << 26  # numbers that are added up to find how fast memory is read


class PeersBench:
    """New tokens of 1 and of 16 rows after a context, head included; forward and backward of one batch."""

    def __init__(self, scale_name: str, repeats: int, tokens: int) -> None:
        self.repeats = max(5, repeats)
        self.shape = replace(scale(scale_name), dropout=0.0)
        low = resolve_precision("auto", CPU)
        self.precisions = (EXACT,) if low == EXACT else (EXACT, low)  # of the peers
        self.models = {p: LoopedLM(model_config(SCSE, self.shape)).eval() for p in (*self.precisions, INT8)}
        for precision, model in self.models.items():
            model.lay_out(precision)
        self.peers = peers(self.shape.width, self.shape.heads, self.shape.vocabulary, self.shape.context, self._flops)
        draw = torch.Generator().manual_seed(0)
        batch = max(1, tokens // self.shape.context)
        self.ids = torch.randint(0, self.shape.vocabulary, (max(batch, *ROWS), self.shape.context), generator=draw)
        self.batch = batch

    @property
    def _flops(self) -> float:
        return LOOPS * body_flops(self.shape)

    @property
    def pieces(self) -> int:
        each = len(self.models) + len(self.precisions) * len(self.peers)
        return self.repeats * (each * len(ROWS) + 1 + len(self.peers))

    def ours(self, precision: str, rows: int) -> Callable[[], object]:
        model, ids = self.models[precision], self.ids[:rows]
        cache = KVCache(model, rows, LOOPS, CONTEXT + 1)
        settle(model, ids[:, :CONTEXT], cache.append(CONTEXT), Depth(LOOPS))

        @torch.no_grad()
        def tokens() -> None:
            for _ in range(IN_A_ROW):
                cache.length = CONTEXT  # forget the last one
                model.head(settle(model, ids[:, :1], cache.append(1), Depth(LOOPS)).outputs[:, -1])

        return tokens

    def theirs(self, peer: Any, precision: str, rows: int) -> Callable[[], object]:
        from transformers import DynamicCache

        peer = copy.deepcopy(peer).to(getattr(torch, precision))
        cache, ids = DynamicCache(), self.ids[:rows]
        with torch.no_grad():
            peer(ids[:, :CONTEXT], past_key_values=cache, use_cache=True)

        @torch.no_grad()
        def tokens() -> None:
            for _ in range(IN_A_ROW):
                peer(ids[:, :1], past_key_values=cache, use_cache=True)
                cache.crop(-1)

        return tokens

    def step(self, model: torch.nn.Module, loss: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        def run() -> None:
            loss(self.ids[: self.batch]).backward()
            model.zero_grad(set_to_none=True)

        return run

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        seconds_per_byte = reading()
        for rows in ROWS:
            work = {name: self.ours(name, rows) for name in self.models}
            for name, peer in self.peers.items():
                work |= {f"{name} {precision}": self.theirs(peer, precision, rows) for precision in self.precisions}
            times = {name: t / IN_A_ROW for name, t in best_seconds(work, self.repeats, meter).items()}
            yield from self._token_rows(rows, times, seconds_per_byte)
        yield from self._step_rows(meter)

    def _token_rows(self, rows: int, times: dict[str, float], seconds_per_byte: float) -> Iterator[Row]:
        where = f"{rows} row{'s' * (rows > 1)}"
        for name in self.models:
            yield Row(f"a token, {where}, {name}", 1e3 * times[name], "ms", note=f"{rows / times[name]:.0f} tokens/s")
            numbers = sum(weight.numel() for weight in self.models[EXACT].parameters())
            memory = numbers * BYTES[name] * seconds_per_byte
            # Of products in 8 bits the machine's rate is not known: there the bar is the memory's alone.
            products = (
                0.0 if name == INT8 else rows * token_flops(self.shape, LOOPS) / matmul_rate(getattr(torch, name), CPU)
            )
            share = max(memory, products) / times[name]
            limit = "memory" if memory > products else "arithmetic"
            yield Row("share of what the machine allows", share, "", f"≥ {SHARE}", share >= SHARE, f"limit: {limit}")
        for name in self.peers:
            for precision in self.precisions:
                theirs = times[f"{name} {precision}"]
                yield Row(f"a token, {where}, {name}", 1e3 * theirs, "ms", note=f"transformers, {precision}")
                ratio = theirs / times[precision]
                yield Row(f"ours over {name}, both in {precision}", ratio, "×", f"≥ {BAR:g}", ratio >= BAR)
            yield Row(f"ours in {INT8} over {name} in {EXACT}", times[f"{name} {EXACT}"] / times[INT8], "×")

    def _step_rows(self, meter: Meter) -> Iterator[Row]:
        model = LoopedLM(model_config(SCSE, self.shape)).train()
        work = {"ours": self.step(model, lambda ids: model.nll(ids[:, :-1], ids[:, 1:], LOOPS))}
        for name, peer in self.peers.items():
            work[name] = self.step(peer, lambda ids, peer=peer: peer(ids, labels=ids).loss)  # type: ignore[misc]
        times = best_seconds(work, self.repeats, meter)
        yield Row(f"forward and backward, T = {LOOPS}", times["ours"], "s", note=f"{self.batch} windows")
        for name in self.peers:
            yield Row(f"the same of {name} over ours", times[name] / times["ours"], "×", note="transformers, float32")


def reading() -> float:
    """Seconds that memory takes for a byte, at best."""
    numbers = torch.ones(READ)
    return best_seconds({"sum": lambda: numbers.sum()}, 5)["sum"] / numbers.nbytes


def peers(width: int, heads: int, vocabulary: int, context: int, flops: float) -> dict[str, Any]:
    """A GPT-2 and a Llama with as many layers as come nearest to so many FLOPs per token; none if not installed."""
    if find_spec("transformers") is None:
        return {}
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    square = 2 * width * width
    gpt2 = GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_embd=width,
        n_head=heads,
        n_layer=max(1, round(flops / (12 * square))),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    llama = LlamaConfig(
        vocab_size=vocabulary,
        max_position_embeddings=context,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=heads,
        num_hidden_layers=max(1, round(flops / (16 * square))),
        tie_word_embeddings=True,
    )
    return {"GPT-2": GPT2LMHeadModel(gpt2).eval(), "Llama": LlamaForCausalLM(llama).eval()}
