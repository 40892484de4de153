"""Where the tensors of other projects go, and what their configurations say in ours.

Each map is a function from their configuration to a `Plan`. Shapes: H heads, k width of a head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from scse.config import ModelConfig, Shape
from scse.errors import UserError
from scse.families import HUGINN, OURO
from scse.model import model_config


@dataclass(frozen=True)
class Plan:
    """`tensors` says for each of ours which of theirs it is made of, and how; `ignored` may be there and is not used.

    `loops` is the depth that the model was made for.
    """

    config: ModelConfig
    loops: int
    tensors: Mapping[str, tuple[Sequence[str], Callable[..., Tensor]]]
    ignored: tuple[str, ...]


Described = Mapping[str, Any]
Made = dict[str, tuple[Sequence[str], Callable[..., Tensor]]]


def same(tensor: Tensor) -> Tensor:
    return tensor


def stacked(*tensors: Tensor) -> Tensor:
    return torch.cat(tensors)


def halves(x: Tensor, width: int) -> Tensor:
    """Channels of heads whose rotated pairs are neighbours, (0, 1), (2, 3), …, in our order: firsts, then seconds."""
    heads = x.reshape(-1, width // 2, 2, *x.shape[1:])
    return heads.transpose(1, 2).reshape(x.shape)


def required(described: Described, name: str) -> Any:
    if name not in described:
        raise UserError(f"the configuration lacks '{name}'; is this a folder of the project named with --from?")
    return described[name]


def insist(described: Described, wanted: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse what our layers cannot compute, by the name it has in the configuration."""
    for name, allowed in wanted.items():
        if (found := described.get(name, allowed[0])) not in allowed:
            raise UserError(
                f"this model has {name}={found!r}, which our layers do not have; readable is {allowed[0]!r}"
            )


def huginn(described: Described) -> Plan:
    """Huginn (`raven`): sandwich layers with the norm over the sum, concatenation drive, `ln_f` used twice."""
    insist(described, {
        "model_type": ("huginn_raven",),
        "injection_type": ("linear",),
        "state_init": ("like-init", "zero"),
        "block_class_name": ("SandwichBlock",),
        "norm_class_name": ("RMSNorm_llama",),
        "mlp_class_name": ("GatedMLP",),
        "nonlin_name": ("SiLU",),
        "bias": (False,),
        "qk_norm": (False,),
        "clip_qkv": (None,),
        "logit_softcap": (None,),
        "mup_model_scaling_factor": (1,),
        "test_time_noise": (0, 0.0),
    })  # fmt: skip
    width = int(required(described, "n_embd"))
    # Theirs derives them from the width where they are not stated.
    start = {"std": math.sqrt(2 / (5 * width)), "embed_scale": math.sqrt(width), **described.get("init_values", {})}
    layers: dict[str, Any] = {
        part: int(required(described, f"n_layers_in_{theirs}")) for part, theirs in _HUGINN_PARTS.items()
    }
    if not layers["coda"]:
        raise UserError("this model has no coda, where its last norm would follow itself; that is not supported")
    heads = int(required(described, "num_attention_heads" if "num_attention_heads" in described else "n_heads"))
    insist(described, {"num_key_value_heads": (heads,)})
    shape = Shape(
        width=width,
        heads=heads,
        ff_width=int(required(described, "intermediate_size")),
        context=int(required(described, "block_size")),
        vocabulary=int(described.get("padded_vocab_size") or required(described, "vocab_size")),
        dropout=0.0,
        norm_eps=float(required(described, "norm_eps")),
        init_std=float(start["std"]),
        positions="rope",
        rope_base=float(required(described, "rope_base")),
        sandwich=True,
        stream_norm=True,
        qk_bias=bool(described.get("qk_bias", False)),
        tied=bool(described.get("tie_embeddings", True)),
        embed_scale=float(start["embed_scale"]),
        **layers,
    )
    begin = "zero" if described.get("state_init") == "zero" else "noise"
    options = {"normalise_input": False, "step_norm": False, "noise": shape.embed_scale, "start": begin}
    made: Made = {
        "tokens.weight": (["transformer.wte.weight"], same),
        "recurrence.drive.proj.weight": (["transformer.adapter.weight"], same),
        "recurrence.read.norm.weight": (["transformer.ln_f.weight"], same),
        "final_norm.weight": (["transformer.ln_f.weight"], same),
    }
    if not shape.tied:
        made["unembedding.weight"] = (["lm_head.weight"], same)
    for part, stem in (("prelude", "prelude"), ("core", "core_block"), ("coda", "coda")):
        for number in range(layers[part]):
            made |= _huginn_layer(shape, ours(part, number, shape), f"transformer.{stem}.{number}.")
    plan = model_config(HUGINN, shape, options)
    return Plan(plan, int(described.get("mean_recurrence", 8)), made, ("lm_head.weight", "freqs_cis"))


_HUGINN_PARTS = {"prelude": "prelude", "core": "recurrent_block", "coda": "coda"}


def _huginn_layer(shape: Shape, mine: str, theirs: str) -> Made:
    size, width = shape.head_width, shape.width

    def turned(qkv: Tensor) -> Tensor:
        q, k, v = qkv.split([width, shape.kv_width, shape.kv_width])
        return torch.cat([halves(q, size), halves(k, size), v])

    def bias(number: int) -> Callable[[Tensor], Tensor]:
        return lambda both: halves(both[number, 0].reshape(-1), size).view(-1, size)

    names = {"attention_norm": "norm_1", "after_attention": "norm_2", "mlp_norm": "norm_3", "after_mlp": "norm_4"}
    names |= {"attention.out": "attn.proj", "mlp.gate_up": "mlp.fc", "mlp.down": "mlp.proj"}
    made: Made = {f"{mine}{part}.weight": ([f"{theirs}{name}.weight"], same) for part, name in names.items()}
    made[f"{mine}attention.qkv.weight"] = ([f"{theirs}attn.Wqkv.weight"], turned)
    if shape.qk_bias:
        for number, part in enumerate(("q_bias", "k_bias")):
            made[f"{mine}attention.{part}"] = ([f"{theirs}attn.qk_bias"], bias(number))
    return made


def ouro(described: Described) -> Plan:
    """Ouro (LoopLM): all layers looped, a norm after each branch, the last norm after every loop, an exit gate."""
    heads = int(required(described, "num_attention_heads"))
    width = int(required(described, "hidden_size"))
    layers = int(required(described, "num_hidden_layers"))
    insist(described, {
        "model_type": (OURO,),
        "hidden_act": ("silu",),
        "use_sliding_window": (False,),
        "layer_types": (["full_attention"] * layers, None),
        "rope_scaling": (None,),
        "partial_rotary_factor": (1,),
        "attention_bias": (False,),
        "head_dim": (width // heads, None),
    })  # fmt: skip
    groups = int(described.get("num_key_value_heads") or heads)
    shape = Shape(
        width=width,
        heads=heads,
        ff_width=int(required(described, "intermediate_size")),
        context=int(required(described, "max_position_embeddings")),
        vocabulary=int(required(described, "vocab_size")),
        dropout=0.0,
        norm_eps=float(required(described, "rms_norm_eps")),
        init_std=float(described.get("initializer_range", 0.02)),
        core=layers,
        positions="rope",
        rope_base=_ouro_rope_base(described),
        sandwich=True,
        kv_heads=0 if groups == heads else groups,
        tied=bool(described.get("tie_word_embeddings", False)),
    )
    gate = "model.early_exit_gate."
    made: Made = {
        "tokens.weight": (["model.embed_tokens.weight"], same),
        "recurrence.reset.norm.weight": (["model.norm.weight"], same),
        "recurrence.exit.proj.weight": ([f"{gate}weight"], same),
        "recurrence.exit.proj.bias": ([f"{gate}bias"], same),
    }
    if not shape.tied:
        made["unembedding.weight"] = (["lm_head.weight"], same)
    for number in range(shape.core):
        made |= _ouro_layer(ours("core", number, shape), f"model.layers.{number}.")
    plan = model_config(OURO, shape, {"exit_gate": True})
    return Plan(plan, int(described.get("total_ut_steps", 4)), made, ("lm_head.weight",))


def _ouro_rope_base(described: Described) -> float:
    """It may stand by itself, or among the parameters of the rotation; both must say the same."""
    turns = described.get("rope_parameters") or {}
    insist(turns, {"rope_type": ("default",), "partial_rotary_factor": (1,)})
    if "rope_theta" not in described:
        return float(required(turns, "rope_theta"))
    insist(turns, {"rope_theta": (described["rope_theta"],)})
    return float(described["rope_theta"])


def _ouro_layer(mine: str, theirs: str) -> Made:
    names = {
        "attention_norm": "input_layernorm",
        "after_attention": "input_layernorm_2",
        "mlp_norm": "post_attention_layernorm",
        "after_mlp": "post_attention_layernorm_2",
        "attention.out": "self_attn.o_proj",
        "mlp.down": "mlp.down_proj",
    }
    made: Made = {f"{mine}{part}.weight": ([f"{theirs}{name}.weight"], same) for part, name in names.items()}
    made[f"{mine}attention.qkv.weight"] = ([f"{theirs}self_attn.{part}_proj.weight" for part in "qkv"], stacked)
    made[f"{mine}mlp.gate_up.weight"] = ([f"{theirs}mlp.{part}_proj.weight" for part in ("gate", "up")], stacked)
    return made


def ours(part: str, number: int, shape: Shape) -> str:
    """Where a layer of ours has its tensors."""
    if part != "core":
        return f"{part}.{number}."
    return "recurrence.core.block." if shape.core == 1 else f"recurrence.core.blocks.{number}."
