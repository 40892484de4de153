"""A cached token and a training step against models of other projects, and against the machine's limits.

The peers have our width and vocabulary and as many FLOPs per token as our T loops, or as near as whole layers come: a
GPT-2 and a Llama of `transformers`, and the looped model of `x-transformers`. They are as they come, in float32 and,
where the machine multiplies in it, in bfloat16. A project that is not installed is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scse.bench.rows import Row
from scse.config import scale
from scse.config.model import Shape
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
        self.peers = {peer.name: peer for peer in (*transformers_peers(self.shape), *x_transformers_peers(self.shape))}
        draw = torch.Generator().manual_seed(0)
        batch = max(1, tokens // self.shape.context)
        self.ids = torch.randint(0, self.shape.vocabulary, (max(batch, *ROWS), self.shape.context), generator=draw)
        self.batch = batch

    @property
    def pieces(self) -> int:
        decoding = sum(len(self.models) + len(self.precisions) * len(self._that_decode(rows)) for rows in ROWS)
        return self.repeats * (decoding + 1 + len(self.peers))

    def _that_decode(self, rows: int) -> list[Peer]:
        return [peer for peer in self.peers.values() if rows <= peer.most_rows]

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

    def theirs(self, peer: Peer, precision: str, rows: int) -> Callable[[], object]:
        with torch.no_grad():
            token = peer.decoder(getattr(torch, precision), self.ids[:rows])

        @torch.no_grad()
        def tokens() -> None:
            for _ in range(IN_A_ROW):
                token()

        return tokens

    def step(self, model: nn.Module, loss: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def run() -> None:
            loss(self.ids[: self.batch]).backward()
            model.zero_grad(set_to_none=True)

        return run

    def run(self, meter: Meter = SILENT) -> Iterator[Row]:
        seconds_per_byte = reading()
        for rows in ROWS:
            work = {name: self.ours(name, rows) for name in self.models}
            for peer in self._that_decode(rows):
                work |= {f"{peer.name} {p}": self.theirs(peer, p, rows) for p in self.precisions}
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
        for peer in self._that_decode(rows):
            name = peer.name
            for precision in self.precisions:
                theirs = times[f"{name} {precision}"]
                yield Row(f"a token, {where}, {name}", 1e3 * theirs, "ms", note=f"{peer.source}, {precision}")
                ratio = theirs / times[precision]
                yield Row(f"ours over {name}, both in {precision}", ratio, "×", f"≥ {BAR:g}", ratio >= BAR)
            yield Row(f"ours in {INT8} over {name} in {EXACT}", times[f"{name} {EXACT}"] / times[INT8], "×")

    def _step_rows(self, meter: Meter) -> Iterator[Row]:
        model = LoopedLM(model_config(SCSE, self.shape)).train()
        work = {"ours": self.step(model, lambda ids: model.nll(ids[:, :-1], ids[:, 1:], LOOPS))}
        for name, peer in self.peers.items():
            work[name] = self.step(peer.model, peer.loss)
        times = best_seconds(work, self.repeats, meter)
        yield Row(f"forward and backward, T = {LOOPS}", times["ours"], "s", note=f"{self.batch} windows")
        for name, peer in self.peers.items():
            yield Row(f"the same of {name} over ours", times[name] / times["ours"], "×", note=f"{peer.source}, float32")


def reading() -> float:
    """Seconds that memory takes for a byte, at best."""
    numbers = torch.ones(READ)
    return best_seconds({"sum": lambda: numbers.sum()}, 5)["sum"] / numbers.nbytes


class Peer(ABC):
    """A model of another project, which `make` builds. It decodes `most_rows` rows at once at most."""

    source: str
    most_rows: int = max(ROWS)

    def __init__(self, name: str, make: Callable[[], nn.Module]) -> None:
        self.name, self._make, self.model = name, make, make()

    def made(self, dtype: torch.dtype) -> nn.Module:
        """One to decode with. A copy would not do: x-transformers ties a copy's head to the original."""
        return self._make().to(dtype).eval()

    @abstractmethod
    def decoder(self, dtype: torch.dtype, ids: Tensor) -> Callable[[], object]:
        """What takes one token of each row after a context, and forgets it again."""

    @abstractmethod
    def loss(self, ids: Tensor) -> Tensor:
        """What is minimised when it is trained on these windows"""


class HubPeer(Peer):
    source = "transformers"

    def decoder(self, dtype: torch.dtype, ids: Tensor) -> Callable[[], object]:
        from transformers import DynamicCache

        model, cache = self.made(dtype), DynamicCache()
        model(ids[:, :CONTEXT], past_key_values=cache, use_cache=True)

        def token() -> None:
            model(ids[:, :1], past_key_values=cache, use_cache=True)
            cache.crop(-1)

        return token

    def loss(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.model(ids, labels=ids).loss
        return loss


class LoopedPeer(Peer):
    """One layer, applied as often as ours. Its cached decoding takes a single row, and has a cache of the prompt for
    every loop and one of the later tokens for the last loop alone."""

    source = "x-transformers"
    most_rows = 1

    def decoder(self, dtype: torch.dtype, ids: Tensor) -> Callable[[], object]:
        model, how = self.made(dtype), {"looped_steps": LOOPS, "looped_inference": True}
        _, cache = model(ids[:, :CONTEXT], return_intermediates=True, **how)
        return lambda: model(ids[:, : CONTEXT + 1], cache=cache, return_intermediates=True, **how)

    def loss(self, ids: Tensor) -> Tensor:
        logits = self.model(ids[:, :-1], looped_steps=LOOPS, looped_pred_all_logits=False)
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def transformers_peers(shape: Shape) -> list[Peer]:
    """A GPT-2 and a Llama with as many layers as come nearest to the FLOPs of our loops."""
    if find_spec("transformers") is None:
        return []
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    width, flops, square = shape.width, LOOPS * body_flops(shape), 2 * shape.width * shape.width
    gpt2 = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.context,
        n_embd=width,
        n_head=shape.heads,
        n_layer=max(1, round(flops / (12 * square))),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    llama = LlamaConfig(
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.context,
        hidden_size=width,
        intermediate_size=4 * width,
        num_attention_heads=shape.heads,
        num_hidden_layers=max(1, round(flops / (16 * square))),
        tie_word_embeddings=True,
    )
    return [HubPeer("GPT-2", lambda: GPT2LMHeadModel(gpt2)), HubPeer("Llama", lambda: LlamaForCausalLM(llama))]


def x_transformers_peers(shape: Shape) -> list[Peer]:
    """Its looped model with one layer of our matrices' shapes."""
    if find_spec("x_transformers") is None:
        return []
    from x_transformers import Decoder, TransformerWrapper

    def make() -> nn.Module:
        layer = Decoder(
            dim=shape.width,
            depth=1,
            heads=shape.heads,
            attn_dim_head=shape.head_width,
            attn_flash=True,
            ff_mult=shape.ff_width / shape.width,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            use_rmsnorm=True,
            pre_and_post_norm=True,  # which its looped models must have
        )
        model: nn.Module = TransformerWrapper(
            num_tokens=shape.vocabulary,
            max_seq_len=shape.context,
            tie_embedding=True,
            looped=True,
            max_looped_steps=LOOPS,
            attn_layers=layer,
        )
        return model

    return [LoopedPeer("x-transformers, looped", make)]
