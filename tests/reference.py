"""Independent references: the equations of the paper and of other projects, written out on a model's tensors.

Nothing here calls the package; a reference gets the tensors by name and computes logits [B, L, V] after `loops` loops.
The SCSE and leak references follow the paper's listing, in hidden coordinates with the anchor added and subtracted.
"""

from __future__ import annotations

import math
import statistics

import torch

EPS = 1e-6


def rms(x):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + EPS)


def rope(x, base):
    """Every pair of channels (i, i + k/2) of a head as a complex number, multiplied by exp(i·position·angle)."""
    half = x.shape[-1] // 2
    angles = [[p * base ** (-i / half) for i in range(half)] for p in range(x.shape[1])]
    turn = torch.exp(1j * torch.tensor(angles, dtype=torch.float64))[:, None]
    turned = torch.complex(x[..., :half].double(), x[..., half:].double()) * turn
    return torch.cat([turned.real, turned.imag], dim=-1).to(x)


def attention(x, w, prefix, shape, embedded=None):
    batch, length, width = x.shape
    heads, head = shape.heads, width // shape.heads
    groups = heads // (shape.kv_heads or heads)
    kv = width // groups
    projected = x @ w[prefix + "qkv.weight"].T
    q = projected[..., :width].reshape(batch, length, heads, head)
    k = projected[..., width : width + kv].reshape(batch, length, heads // groups, head)
    v = projected[..., width + kv :].reshape(batch, length, heads // groups, head)
    if shape.qk_bias:
        q, k = q + w[prefix + "q_bias"], k + w[prefix + "k_bias"]
    if shape.qk_norm:
        q, k = rms(q) * w[prefix + "q_norm.weight"], rms(k) * w[prefix + "k_norm.weight"]
    if shape.positions == "rope":
        q, k = rope(q, shape.rope_base), rope(k, shape.rope_base)
    if embedded is not None:
        gate = 2 / (1 + torch.exp(-x[..., :32] @ w[prefix + "value_gate.weight"].T))
        v = v + gate[..., None] * embedded.reshape(v.shape)
    k, v = (torch.stack([part[:, :, h // groups] for h in range(heads)], dim=2) for part in (k, v))
    scores = torch.einsum("bihc,bjhc->bhij", q, k) / math.sqrt(head)
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
    weights = torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1)
    mixed = torch.einsum("bhij,bjhc->bihc", weights, v).reshape(batch, length, width)
    return mixed @ w[prefix + "out.weight"].T


def layer(x, w, prefix, shape, scales=(0, 0), gates=(1, 1), embedded=None):
    """One layer with its residuals: pre-norm, or with norms on both sides of the branches or of the sums."""

    def norm(y, name):
        return rms(y) * w[prefix + name + ".weight"]

    def mlp(y):
        if shape.mlp == "relu2":
            return (y @ w[prefix + "mlp.up.weight"].T).clamp_min(0) ** 2 @ w[prefix + "mlp.down.weight"].T
        gate, up = (y @ w[prefix + "mlp.gate_up.weight"].T).chunk(2, dim=-1)
        return (gate * torch.sigmoid(gate) * up) @ w[prefix + "mlp.down.weight"].T

    def join(y, branch, name):
        if shape.stream_norm:
            return norm(y + branch, name)
        return y + (norm(branch, name) if shape.sandwich else branch)

    seen = (1 + scales[0]) * norm(x, "attention_norm")
    x = join(x, gates[0] * attention(seen, w, prefix + "attention.", shape, embedded), "after_attention")
    return join(x, gates[1] * mlp((1 + scales[1]) * norm(x, "mlp_norm")), "after_mlp")


class Reference:
    """The parts every reference shares: embedding, projections, block, readout."""

    def __init__(self, weights, shape, options):
        self.w, self.shape, self.o = weights, shape, options

    def embedded(self, number):
        """What the values of layer `number` of the model get, those of all even distances from the last."""
        shape = self.shape
        last = shape.prelude + shape.core + shape.coda - 1
        if not shape.value_embeddings or (last - number) % 2:
            return None
        earlier = sum(1 for before in range(number) if (last - before) % 2 == 0)
        return self.w[f"values.{earlier}.weight"][self.ids]

    def layers(self, x, stem, count, first):
        for number in range(count):
            x = layer(x, self.w, f"{stem}{number}.", self.shape, embedded=self.embedded(first + number))
        return x

    def embed(self, ids):
        self.ids = ids
        e = self.w["tokens.weight"][ids] * self.shape.embed_scale
        if self.shape.positions == "learned":
            e = e + self.w["positions.weight"][: ids.shape[1]]
        return self.layers(e, "prelude.", self.shape.prelude, 0)

    def readout(self, h):
        y = self.layers(h, "coda.", self.shape.coda, self.shape.prelude + self.shape.core)
        if "final_norm.weight" in self.w:
            y = rms(y) * self.w["final_norm.weight"]
        return y @ self.w["tokens.weight" if self.shape.tied else "unembedding.weight"].T

    def through(self, x, first=0):
        """R(x): the layers of the core with their residuals."""
        if self.shape.core == 1 and "recurrence.core.block.mlp.down.weight" in self.w:
            return layer(x, self.w, "recurrence.core.block.", self.shape, embedded=self.embedded(self.shape.prelude))
        for number in range(self.shape.core):
            prefix, embedded = f"recurrence.core.blocks.{first + number}.", self.embedded(self.shape.prelude + number)
            x = layer(x, self.w, prefix, self.shape, embedded=embedded)
        return x

    def core(self, first=0):
        """B: what the core adds."""
        return lambda x: self.through(x, first) - x

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
        h = h + r.core(t * r.shape.core)(h)
    return r.readout(h)


# ------------------------------------------------- other projects


def noise(r, e):
    """The hash of NoiseStart with Python's own integers, and the normal quantile of the standard library."""
    normal = statistics.NormalDist()
    low, width = normal.cdf(-3.0), e.shape[-1]
    rows = []
    for position in range(e.shape[1]):
        row = []
        for channel in range(width):
            x = (position * width + channel + 1) * 0x9E3779B97F4A7C15 + r.o["noise_seed"] * 0xBF58476D1CE4E5B9
            x %= 2**64
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
            u = (((x ^ (x >> 31)) >> 11) + 0.5) / 2**53
            row.append(normal.inv_cdf(low + u * (1 - 2 * low)))
        rows.append(row)
    sigma = r.o["noise"] * r.shape.init_std
    return (sigma * torch.tensor(rows, dtype=torch.float64)).to(e).expand_as(e)


def concatenated(r, e):
    return lambda h: torch.cat([h, rms(e)], dim=-1) @ r.w["recurrence.drive.proj.weight"].T


def decay(r, e):
    delta = torch.log1p(torch.exp(r.w["recurrence.drive.step_size"]))
    kept = torch.exp(-delta * torch.exp(r.w["recurrence.drive.log_rate"]))
    return kept, delta * (rms(e) @ r.w["recurrence.drive.proj.weight"].T)


def decayed(r, e):
    kept, u = decay(r, e)
    return lambda h: kept * h + u


def orthogonal(r, e):
    kept, u = decay(r, e)

    def seen(h):
        share = torch.einsum("bld,bld->bl", kept * h, u) / (torch.einsum("bld,bld->bl", u, u) + EPS)
        return kept * h + (1 - share)[..., None] * u

    return seen


def step_normed(r, h):
    return rms(h) * r.w["recurrence.reset.norm.weight"]


def read_normed(r, h):
    return rms(h) * r.w["recurrence.read.norm.weight"] if r.shape.coda else h


def read_matrix(r, h):
    return h @ r.w["recurrence.read.proj.weight"].T


def rival(drive, after=lambda r, h: h, read=lambda r, h: h):
    """h' = after(R(drive(h))), from noise"""

    def logits(r, ids, loops):
        e = r.embed(ids)
        h, seen = noise(r, e), drive(r, e)
        for _ in range(loops):
            h = after(r, r.through(seen(h)))
        return r.readout(read(r, h))

    return logits


def centred(drive, after=lambda r, h: h, read=lambda r, h: h):
    """Both trajectories in hidden coordinates: the state's step, minus the anchor's."""

    def logits(r, ids, loops):
        e = r.embed(ids)
        anchor, h, seen = r.anchor(e), r.start(e), drive(r, e)
        for _ in range(loops):
            h = anchor + after(r, r.through(seen(h))) - after(r, r.through(seen(anchor)))
        return r.readout(read(r, h))

    return logits


def ouro(r, ids, loops):
    h = r.embed(ids)
    for _ in range(loops):
        h = step_normed(r, r.through(h))
    return r.readout(h)


def sinusoidal(number, width, dtype):
    half = width // 2
    angles = [number / 10000 ** (i / half) for i in range(half)]
    return torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=dtype)


def loopformer(r, ids, loops):
    def silu(x):
        return x / (1 + torch.exp(-x))

    def affine(name, x):
        return r.w[f"recurrence.core.{name}.weight"] @ x + r.w[f"recurrence.core.{name}.bias"]

    def clock(name, number):
        seen = sinusoidal(number, r.shape.width, r.w["tokens.weight"].dtype)
        return affine(f"{name}.outer", silu(affine(f"{name}.inner", seen)))

    h, steps = r.embed(ids), r.o["time_steps"]
    for t in range(loops):
        condition = silu(clock("time", min(t, steps - 1) / steps) + clock("size", 1 / steps))
        for number in range(r.shape.core):
            s_a, g_a, s_m, g_m = affine(f"modulate.{number}", condition).chunk(4)
            prefix = "recurrence.core.block." if r.shape.core == 1 else f"recurrence.core.blocks.{number}."
            h = layer(h, r.w, prefix, r.shape, (s_a, s_m), (g_a, g_m))
    return r.readout(h)


def universal(r, ids, loops):
    """Token by token: who has halted stays, and is read as the mean of its states by their probabilities."""
    h = r.embed(ids)
    weight, bias = r.w["recurrence.halting.proj.weight"][0], r.w["recurrence.halting.proj.bias"]
    total, spent = torch.zeros_like(h), torch.zeros_like(h[..., 0])
    for t in range(loops):
        new = r.through(h + r.o["step_signal"] * sinusoidal(t, h.shape[-1], h.dtype))
        for b in range(h.shape[0]):
            for i in range(h.shape[1]):
                if spent[b, i] == 1:
                    new[b, i] = h[b, i]
                    continue
                p = 1 / (1 + math.exp(-float(new[b, i] @ weight + bias)))
                if spent[b, i] + p > 1 - r.o["halting_epsilon"]:
                    p = 1 - float(spent[b, i])
                    spent[b, i] = 1
                else:
                    spent[b, i] += p
                total[b, i] += p * new[b, i]
        h = new
    return r.readout(total + (1 - spent)[..., None] * h)


def scse_recall(r, ids, loops):
    """In hidden coordinates; exp(−softplus(d)) is 1/(1 + e^d)."""
    e = r.embed(ids)
    anchor, h = r.anchor(e), r.start(e)
    u = rms(e) @ r.w["recurrence.drive.proj.weight"].T
    share = torch.einsum("bld,bld->bl", u, anchor) / (torch.einsum("bld,bld->bl", anchor, anchor) + EPS)
    recalled = r.w["recurrence.drive.gain"] * rms(u - share[..., None] * anchor)
    kept = 1 / (1 + torch.exp(r.w["recurrence.keep.rate"]))
    for _ in range(loops):
        delta = h - anchor
        energy = (delta * delta).mean(-1, keepdim=True)
        seen = delta + energy / torch.sqrt(energy + EPS) * recalled
        h = anchor + kept * delta + r.o["step_scale"] * r.core()(seen)
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
    "huginn": rival(concatenated, step_normed, read_normed),
    "parcae": rival(decayed, read=read_matrix),
    "orthogonal-injection": rival(orthogonal, read=read_matrix),
    "ouro": ouro,
    "loopformer": loopformer,
    "universal": universal,
    "centred-huginn": centred(concatenated, step_normed, read_normed),
    "centred-parcae": centred(decayed, read=read_matrix),
    "centred-orthogonal-injection": centred(orthogonal, read=read_matrix),
    "scse-recall": scse_recall,
}


def reference_logits(model, ids, loops):
    """The logits of `model` by the reference of its family."""
    config = model.config
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return REFERENCES[config.family](Reference(weights, config.shape, config.options), ids, loops)
