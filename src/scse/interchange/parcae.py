"""Where the tensors of Parcae go, and what its configuration says in ours. Shapes: d width, k width of a head."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor

from scse.config import Shape
from scse.errors import UserError
from scse.families import PARCAE
from scse.interchange.maps import Described, Made, Plan, halves, insist, ours, required, same
from scse.model import model_config

HALF = 0.5  # of the square in their MLP, relu(x)²/2
THEIR_QK_EPS = torch.finfo(torch.float32).eps  # of the norm of their queries and keys, whatever the other norms have
THEIR_STEMS = {"prelude": "prelude", "core": "core_block", "coda": "coda"}
ROPE = {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 50_000}


def parcae(described: Described) -> Plan:
    """Parcae: pre-norm layers with squared ReLUs, value embeddings in every second one, decay and injection, C."""
    shape = described_shape(described)
    check_gates(described, shape)
    normed = bool(described.get("prelude_norm", False))
    start = "zero" if described.get("state_init") == "zero" else "noise"
    injection = ["transformer.adapter.B", *(["transformer.ln_prelude.weight"] if normed else [])]
    made: Made = {
        "tokens.weight": (["transformer.wte.weight"], same),
        "recurrence.drive.log_rate": (["transformer.adapter.A_log"], same),
        "recurrence.drive.step_size": (["transformer.adapter.dt_bias"], same),
        # W n_w(e) = (W diag(w)) n(e)
        "recurrence.drive.proj.weight": (injection, lambda matrix, *weights: math.prod(weights, start=matrix)),
        "recurrence.read.proj.weight": (["transformer.C.weight"], same),
        "final_norm.weight": (["transformer.ln_f.weight"], same),
    }
    if not shape.tied:
        made["unembedding.weight"] = (["lm_head.weight"], same)
    for place, number in enumerate(filter(shape.valued, range(shape.layers))):
        made[f"values.{place}.weight"] = ([f"value_embeds.{number}.weight"], same)
    counted = 0
    for part, stem in THEIR_STEMS.items():
        for number in range(getattr(shape, part)):
            mine, theirs = ours(part, number, shape), f"transformer.{stem}.{number}."
            made |= layer(shape, mine, theirs, shape.valued(counted))
            counted += 1
    config = model_config(PARCAE, shape, {"normalise_input": normed, "start": start})
    return Plan(config, int(required(described, "mean_recurrence")), made, ("lm_head.weight", "freqs_cis"))


def described_shape(described: Described) -> Shape:
    width, inner = (int(required(described, name)) for name in ("n_embd", "intermediate_size"))
    heads = int(required(described, "num_attention_heads"))
    insist(described, {
        "injection_type": ("diagonal",),
        "block_class_name": ("TransformerPreNormBlock",),
        "norm_class_name": ("RMSNorm",),
        "mlp_class_name": ("BaseMLP",),
        "nonlin_name": ("ReLU2",),
        "state_init": ("like-init", "zero"),
        "init_strategy": ("scaled-zero",),
        "mup_model_scaling_factor": (1,),
        "bias": (False,),
        "qk_bias": (False,),
        "clip_qkv": (None,),
        "logit_softcap": (None,),
        "num_key_value_heads": (heads, None),
        "recurrent_embedding_dimension": (width,),
        "recurrent_intermediation_embedding_dimension": (inner,),
        "recurrent_num_attention_heads": (None, heads),
    })  # fmt: skip
    turns = {**ROPE, **(described.get("rope_settings") or {})}
    insist(turns, {name: (ROPE[name],) for name in ("use_rope", "rope_condense_ratio")})
    words, multiple = int(required(described, "vocab_size")), int(described.get("padding_multiple", 512))
    return Shape(
        width=width,
        heads=heads,
        ff_width=inner,
        context=int(required(described, "block_size")),
        vocabulary=int(described.get("padded_vocab_size") or multiple * math.ceil(words / multiple)),
        dropout=0.0,
        norm_eps=float(required(described, "norm_eps")),
        init_std=math.sqrt(2 / (5 * width)),
        prelude=int(required(described, "n_layers_in_prelude")),
        core=int(required(described, "n_layers_in_recurrent_block")),
        coda=int(required(described, "n_layers_in_coda")),
        positions="rope",
        rope_base=float(turns["rope_base"]),
        qk_norm=bool(described.get("qk_norm", False)),
        tied=bool(described.get("tie_embeddings", False)),
        mlp="relu2",
        value_embeddings=True,
    )


def check_gates(described: Described, shape: Shape) -> None:
    """Their gates are in every second layer by another count than their tables; only where both are, values change."""
    last = shape.core * int(required(described, "mean_backprop_depth")) - 1
    after = shape.prelude + shape.core * int(required(described, "mean_recurrence"))
    numbers = chain(range(shape.prelude + shape.core), range(after, after + shape.coda))
    if any(((last - number) % 2 == 0) != shape.valued(place) for place, number in enumerate(numbers)):
        raise UserError(
            "this model has value embeddings without gates, which our layers do not have; readable are those with an "
            "even number of layers in each part"
        )


def layer(shape: Shape, mine: str, theirs: str, valued: bool) -> Made:
    size = shape.head_width
    # Their norm of queries and keys has an epsilon of its own: c·q with another is normalised to the same.
    scale = math.sqrt(shape.norm_eps / THEIR_QK_EPS) if shape.qk_norm else 1.0

    def turned(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.cat([scale * halves(q, size), scale * halves(k, size), v])

    def ones(tensor: Tensor) -> Tensor:
        return tensor.new_ones(size)

    plain: dict[str, tuple[str, Callable[..., Tensor]]] = {
        "attention_norm": ("norm_1", same),
        "mlp_norm": ("norm_2", same),
        "attention.out": ("attn.c_proj", same),
        "mlp.up": ("mlp.fc", same),
        "mlp.down": ("mlp.proj", lambda matrix: HALF * matrix),
    }
    if shape.qk_norm:
        plain |= {"attention.q_norm": ("attn.c_q", ones), "attention.k_norm": ("attn.c_k", ones)}
    if valued:
        plain["attention.value_gate"] = ("attn.ve_gate", same)
    made: Made = {f"{mine}{part}.weight": ([f"{theirs}{name}.weight"], make) for part, (name, make) in plain.items()}
    made[f"{mine}attention.qkv.weight"] = ([f"{theirs}attn.c_{part}.weight" for part in "qkv"], turned)
    return made
