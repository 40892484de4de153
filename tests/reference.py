"""Independent references: the paper's equations written out on a model's tensors, with plain matrix algebra.

Nothing here calls the package; a reference gets the tensors by name and computes logits [B, L, V] after `loops` loops.
The SCSE and leak references follow the paper's listing, in hidden coordinates with the anchor added and subtracted.
"""

from __future__ import annotations

import math

import torch

EPS = 1e-6


def rms(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def attention(x, w_qkv, w_out, heads):
    batch, length, width = x.shape
    head = width // heads
    q, k, v = (part.reshape(batch, length, heads, head) for part in (x @ w_qkv.T).split(width, dim=-1))
    scores = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(head)
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
    return torch.einsum("bhij,bjhc->bihc", weights, v).reshape(batch, length, width) @ w_out.T


def block(w, prefix, heads):
    def update(x):
        a = attention(
            rms(x) * w[prefix + "attention_norm.weight"],
            w[prefix + "attention.qkv.weight"],
            w[prefix + "attention.out.weight"],
            heads,
        )
        y = rms(x + a) * w[prefix + "mlp_norm.weight"]
        gate, up = (y @ w[prefix + "mlp.gate_up.weight"].T).chunk(2, dim=-1)
        return a + (gate * torch.sigmoid(gate) * up) @ w[prefix + "mlp.down.weight"].T

    return update


class Reference:
    """The parts every reference shares: embedding, projections, block, readout."""

    def __init__(self, weights, heads, options):
        self.w, self.heads, self.o = weights, heads, options

    def embed(self, ids):
        return self.w["tokens.weight"][ids] + self.w["positions.weight"][: ids.shape[1]]

    def readout(self, h):
        return (rms(h) * self.w["final_norm.weight"]) @ self.w["tokens.weight"].T

    def core(self, prefix="recurrence.core.block."):
        return block(self.w, prefix, self.heads)

    def start(self, e):
        return e + 0.1 * rms(e) @ self.w["recurrence.start.map.proj.weight"].T

    def anchor(self, e):
        kind = self.o.get("anchor", "learned")
        if kind == "embedding":
            return e
        if kind == "initial":
            return self.start(e)
        return e + 0.1 * rms(e) @ self.w["recurrence.anchor.map.proj.weight"].T

    def source(self, x, name="recurrence.drive."):
        return self.w[name + "gain"] * (x @ self.w[name + "proj.weight"].T)


def scse_step(h, anchor, core, *, step_scale=0.5, leak=0.0, cond_proj=None, kappa=0.0, eps=1e-8):
    """The paper's listing, one step."""
    delta = h - anchor
    seen = delta
    if cond_proj is not None and kappa != 0.0:
        seen = delta + kappa * cond_proj(anchor)
    q = step_scale * core(seen)
    active = (delta.pow(2).sum(dim=(1, 2), keepdim=True) > eps).to(q.dtype)
    return anchor + (1.0 - leak) * delta + q * active


def listing(r, ids, loops, **step):
    e = r.embed(ids)
    anchor, h = r.anchor(e), r.start(e)
    for _ in range(loops):
        h = scse_step(h, anchor, r.core(), step_scale=r.o["step_scale"], **step)
    return r.readout(h)


def scse(r, ids, loops):
    return listing(r, ids, loops)


def conditioned(r):
    w_c, kappa = r.w["recurrence.drive.proj.weight"], float(r.w["recurrence.drive.gain"])
    return {"cond_proj": lambda x: x @ w_c.T, "kappa": kappa}


def leak(r, ids, loops):
    return listing(r, ids, loops, leak=r.o["leak"], **conditioned(r))


def sc_cond(r, ids, loops):
    return listing(r, ids, loops, eps=r.o["mask_threshold"] if r.o["mask"] else -1.0, **conditioned(r))


def sc_cond_subtractive(r, ids, loops):
    e = r.embed(ids)
    anchor, core = r.anchor(e), r.core()
    delta, c = r.start(e) - anchor, r.source(anchor)
    for _ in range(loops):
        delta = delta + r.o["step_scale"] * (core(delta + c) - core(c))
    return r.readout(anchor + delta)


def forcing_subtraction(r, ids, loops):
    e = r.embed(ids)
    anchor, core = r.anchor(e), r.core()
    delta, c = r.start(e) - anchor, anchor + r.source(e)
    for _ in range(loops):
        delta = delta + r.o["step_scale"] * (core(c + delta) - core(c))
    return r.readout(anchor + delta)


def looped(r, ids, loops, scale=None, after=lambda t, h: h):
    e = r.embed(ids)
    h = e
    for t in range(loops):
        s = r.o["step_scale"] if scale is None else scale(h)
        h = after(t, h + s * r.core()(h + r.source(e)))
    return r.readout(h)


def scalar_gate(r, ids, loops):
    return looped(r, ids, loops, scale=lambda h: r.w["recurrence.gain.gate"])


def channel_gate(r, ids, loops):
    weight, bias = r.w["recurrence.gain.proj.weight"], r.w["recurrence.gain.proj.bias"]
    return looped(r, ids, loops, scale=lambda h: 1 / (1 + torch.exp(-(rms(h) @ weight.T + bias))))


def norm_reset(r, ids, loops):
    period = r.o["reset_period"]
    return looped(r, ids, loops, after=lambda t, h: rms(h) if t % period == period - 1 else h)


def adapter(r, ids, loops, seen=lambda t, x: x, drive="recurrence.drive."):
    e = r.embed(ids)
    anchor, h = r.anchor(e), r.start(e)
    for t in range(loops):
        h = h + r.o["step_scale"] * r.core()(seen(t, h + r.source(anchor, drive)))
    return r.readout(h)


def step_adapter(r, ids, loops):
    weight = r.w["recurrence.drive.proj.weight"]
    half = weight.shape[1] // 2

    def seen(t, x):
        angles = [t / 10000 ** (i / half) for i in range(half)]
        gamma = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=x.dtype)
        return x + r.o["step_signal"] * (weight @ gamma)

    return adapter(r, ids, loops, seen, "recurrence.drive.inner.")


def film_adapter(r, ids, loops):
    table = r.w["recurrence.drive.table.weight"]

    def seen(t, x):
        scale, shift = table[min(t, len(table) - 1)].chunk(2)
        return x + r.o["film_scale"] * (scale * x + shift)

    return adapter(r, ids, loops, seen, "recurrence.drive.inner.")


def unshared(r, ids, loops):
    h = r.embed(ids)
    for t in range(min(loops, r.o["layers"])):
        h = h + r.core(f"recurrence.core.blocks.{t}.")(h)
    return r.readout(h)


REFERENCES = {
    "looped": looped,
    "looped-s035": looped,
    "scalar-gate": scalar_gate,
    "channel-gate": channel_gate,
    "norm-reset": norm_reset,
    "adapter": adapter,
    "tuned-adapter": adapter,
    "step-adapter": step_adapter,
    "film-adapter": film_adapter,
    "scse": scse,
    "scse-embedding": scse,
    "scse-initial": scse,
    "scse-random": scse,
    "sc-cond": sc_cond,
    "sc-cond-unmasked": sc_cond,
    "sc-cond-subtractive": sc_cond_subtractive,
    "forcing-subtraction": forcing_subtraction,
    "leak": leak,
    "unshared-3": unshared,
}


def reference_logits(model, ids, loops):
    """The logits of `model` by the reference of its family."""
    config = model.config
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return REFERENCES[config.family](Reference(weights, config.shape.heads, config.options), ids, loops)
