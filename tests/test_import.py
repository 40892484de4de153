"""Weights of other projects: tiny random ones in their published key layout, against a plain forward pass of theirs."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import pytest
import torch
from safetensors.torch import save_file

from scse import load_model
from scse.cli import main
from scse.data.tokenizer import train_tokenizer
from scse.errors import UserError
from scse.interchange import read_foreign
from scse.runs import open_run
from scse.runs.folder import read_run_config
from tinymodels import some_ids

HUGINN = {
    "model_type": "huginn_raven", "n_embd": 24, "num_attention_heads": 3, "num_key_value_heads": 3,
    "intermediate_size": 40, "block_size": 16, "vocab_size": 280, "padded_vocab_size": 300, "n_layers_in_prelude": 1,
    "n_layers_in_recurrent_block": 2, "n_layers_in_coda": 1, "norm_eps": 1e-6, "rope_base": 50000, "qk_bias": True,
    "tie_embeddings": True, "bias": False, "injection_type": "linear", "block_class_name": "SandwichBlock",
    "mlp_class_name": "GatedMLP", "nonlin_name": "SiLU", "mean_recurrence": 5,
    "init_values": {"std": 0.1, "embed_scale": 4.5},
}  # fmt: skip
OURO = {
    "model_type": "ouro", "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 16, "vocab_size": 300, "num_hidden_layers": 2,
    "rms_norm_eps": 1e-6, "rope_theta": 1000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "total_ut_steps": 3, "rope_scaling": None, "use_sliding_window": False, "head_dim": 6,
}  # fmt: skip
PARCAE = {
    "_class_name": "ParcaeConfig", "name": "tiny", "n_embd": 40, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 56, "block_size": 16, "vocab_size": 280, "padding_multiple": 100, "padded_vocab_size": 300,
    "n_layers_in_prelude": 2, "n_layers_in_recurrent_block": 2, "n_layers_in_coda": 2, "norm_eps": 1e-5,
    "block_class_name": "TransformerPreNormBlock", "norm_class_name": "RMSNorm", "mlp_class_name": "BaseMLP",
    "nonlin_name": "ReLU2", "bias": False, "qk_bias": False, "qk_norm": True, "clip_qkv": None, "logit_softcap": None,
    "rope_settings": {"use_rope": True, "rope_condense_ratio": 1, "rope_base": 500}, "injection_type": "diagonal",
    "state_init": "like-init", "init_strategy": "scaled-zero", "recurrent_embedding_dimension": 40,
    "recurrent_intermediation_embedding_dimension": 56, "recurrent_num_attention_heads": None, "prelude_norm": True,
    "tie_embeddings": True, "mup_model_scaling_factor": 1, "mean_recurrence": 8, "mean_backprop_depth": 4,
}  # fmt: skip
PARCAE_STEMS = [f"{part}.{number}" for part in ("prelude", "core_block", "coda") for number in range(2)]


def drawn(shapes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (1.0 if len(size) == 1 else 0.0) + 0.2 * torch.randn(size, generator=generator)
        for name, size in shapes.items()
    }


def huginn_weights():
    shapes = {"transformer.wte.weight": (300, 24), "transformer.adapter.weight": (24, 48)}
    shapes["transformer.ln_f.weight"] = (24,)
    for stem in ("prelude.0", "core_block.0", "core_block.1", "coda.0"):
        layer = f"transformer.{stem}."
        shapes |= {f"{layer}norm_{n}.weight": (24,) for n in (1, 2, 3, 4)}
        shapes |= {f"{layer}attn.Wqkv.weight": (72, 24), f"{layer}attn.qk_bias": (2, 1, 3, 8)}
        shapes |= {f"{layer}attn.proj.weight": (24, 24), f"{layer}mlp.fc.weight": (80, 24)}
        shapes |= {f"{layer}mlp.proj.weight": (24, 40)}
    weights = drawn(shapes)
    return weights | {"lm_head.weight": weights["transformer.wte.weight"].clone(), "freqs_cis": torch.zeros(1, 16, 2)}


def ouro_weights():
    shapes = {"model.embed_tokens.weight": (300, 24), "model.norm.weight": (24,), "lm_head.weight": (300, 24)}
    shapes |= {"model.early_exit_gate.weight": (1, 24), "model.early_exit_gate.bias": (1,)}
    for number in range(2):
        layer = f"model.layers.{number}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes |= {f"{layer}{norm}.weight": (24,), f"{layer}{norm}_2.weight": (24,)}
        shapes |= {f"{layer}self_attn.{p}_proj.weight": (n, 24) for p, n in (("q", 24), ("k", 12), ("v", 12))}
        shapes |= {f"{layer}self_attn.o_proj.weight": (24, 24), f"{layer}mlp.down_proj.weight": (24, 40)}
        shapes |= {f"{layer}mlp.{p}_proj.weight": (40, 24) for p in ("gate", "up")}
    return drawn(shapes, seed=1)


def parcae_weights():
    shapes = {"transformer.wte.weight": (300, 40), "transformer.C.weight": (40, 40)}
    shapes |= {f"transformer.{name}.weight": (40,) for name in ("ln_f", "ln_prelude")}
    shapes |= {"transformer.adapter.A_log": (40,), "transformer.adapter.dt_bias": (40,)}
    shapes["transformer.adapter.B"] = (40, 40)
    for number, stem in enumerate(PARCAE_STEMS):
        layer = f"transformer.{stem}."
        shapes |= {f"{layer}norm_1.weight": (40,), f"{layer}norm_2.weight": (40,)}
        shapes |= {f"{layer}attn.c_{part}.weight": (40, 40) for part in ("q", "k", "v", "proj")}
        shapes |= {f"{layer}mlp.fc.weight": (56, 40), f"{layer}mlp.proj.weight": (40, 56)}
        if number % 2:
            shapes |= {f"{layer}attn.ve_gate.weight": (4, 32), f"value_embeds.{number}.weight": (300, 40)}
    weights = drawn(shapes, seed=2)
    return weights | {"lm_head.weight": weights["transformer.wte.weight"].clone(), "freqs_cis": torch.zeros(1, 16, 2)}


def norm(x, w, eps=1e-6):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * w


def mixed(q, k, v):
    """Causal attention of [L, H, k], one head after another."""
    length, heads, size = q.shape
    out = torch.zeros_like(q)
    for h in range(heads):
        for i in range(length):
            weights = torch.softmax(k[: i + 1, h] @ q[i, h] / math.sqrt(size), dim=0)
            out[i, h] = weights @ v[: i + 1, h]
    return out.reshape(length, -1)


def turned_pairs(x, base):
    """Neighbouring channels are a complex number, as in Huginn."""
    length, _, size = x.shape
    angles = torch.tensor([[p * base ** (-2 * i / size) for i in range(size // 2)] for p in range(length)])
    turned = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2)) * torch.polar(torch.ones(1), angles)[:, None]
    return torch.view_as_real(turned).reshape(x.shape)


def turned_halves(x, base):
    """x cos + rotate_half(x) sin, as in Ouro."""
    length, _, size = x.shape
    angles = torch.tensor([[p * base ** (-2 * i / size) for i in range(size // 2)] * 2 for p in range(length)])[:, None]
    turned = torch.cat([-x[..., size // 2 :], x[..., : size // 2]], dim=-1)
    return x * angles.cos() + turned * angles.sin()


def silu(x):
    return x / (1 + torch.exp(-x))


def huginn_layer(x, w, p):
    q, k, v = (part.reshape(len(x), 3, 8) for part in (norm(x, w[p + "norm_1.weight"]) @ w[p + "attn.Wqkv.weight"].T)
               .split(24, dim=-1))  # fmt: skip
    q, k = (turned_pairs(part + w[p + "attn.qk_bias"][n], 50000) for n, part in enumerate((q, k)))
    x = norm(x + mixed(q, k, v) @ w[p + "attn.proj.weight"].T, w[p + "norm_2.weight"])
    gate, up = (norm(x, w[p + "norm_3.weight"]) @ w[p + "mlp.fc.weight"].T).split(40, dim=-1)
    return norm(x + (silu(gate) * up) @ w[p + "mlp.proj.weight"].T, w[p + "norm_4.weight"])


def huginn_logits(w, ids, loops, start):
    e = huginn_layer(4.5 * w["transformer.wte.weight"][ids], w, "transformer.prelude.0.")
    x = start
    for _ in range(loops):
        x = torch.cat([x, e], dim=-1) @ w["transformer.adapter.weight"].T
        for number in range(2):
            x = huginn_layer(x, w, f"transformer.core_block.{number}.")
    x = huginn_layer(norm(x, w["transformer.ln_f.weight"]), w, "transformer.coda.0.")
    return norm(x, w["transformer.ln_f.weight"]) @ w["lm_head.weight"].T


def ouro_logits(w, ids, loops):
    x = w["model.embed_tokens.weight"][ids]
    gates = []
    for _ in range(loops):
        for number in range(2):
            p = f"model.layers.{number}."
            seen = norm(x, w[p + "input_layernorm.weight"])
            q, k, v = ((seen @ w[f"{p}self_attn.{n}_proj.weight"].T).reshape(len(x), -1, 6) for n in "qkv")
            q, k = turned_halves(q, 1000.0), turned_halves(k, 1000.0)
            k, v = (part.repeat_interleave(2, dim=1) for part in (k, v))
            a = mixed(q, k, v) @ w[p + "self_attn.o_proj.weight"].T
            x = x + norm(a, w[p + "input_layernorm_2.weight"])
            seen = norm(x, w[p + "post_attention_layernorm.weight"])
            inner = silu(seen @ w[p + "mlp.gate_proj.weight"].T) * (seen @ w[p + "mlp.up_proj.weight"].T)
            x = x + norm(inner @ w[p + "mlp.down_proj.weight"].T, w[p + "post_attention_layernorm_2.weight"])
        x = norm(x, w["model.norm.weight"])
        gates.append(torch.sigmoid(x @ w["model.early_exit_gate.weight"][0] + w["model.early_exit_gate.bias"]))
    return x @ w["lm_head.weight"].T, torch.stack(gates)


def parcae_layer(x, w, number, ids):
    p = f"transformer.{PARCAE_STEMS[number]}."
    seen = norm(x, w[p + "norm_1.weight"], 1e-5)
    q, k, v = ((seen @ w[f"{p}attn.c_{n}.weight"].T).reshape(len(x), 4, 10) for n in "qkv")
    if number % 2:
        gate = 2 * torch.sigmoid(seen[:, :32] @ w[p + "attn.ve_gate.weight"].T)
        v = v + gate[..., None] * w[f"value_embeds.{number}.weight"][ids].reshape(v.shape)
    q, k = (norm(turned_pairs(part, 500), 1.0, torch.finfo(torch.float32).eps) for part in (q, k))
    x = x + mixed(q, k, v) @ w[p + "attn.c_proj.weight"].T
    inner = (norm(x, w[p + "norm_2.weight"], 1e-5) @ w[p + "mlp.fc.weight"].T).clamp_min(0) ** 2 / 2
    return x + inner @ w[p + "mlp.proj.weight"].T


def parcae_logits(w, ids, loops, start):
    e = w["transformer.wte.weight"][ids]
    for number in (0, 1):
        e = parcae_layer(e, w, number, ids)
    e, x = norm(e, w["transformer.ln_prelude.weight"], 1e-5), start
    size = torch.log1p(torch.exp(w["transformer.adapter.dt_bias"]))
    decay = torch.exp(-size * torch.exp(w["transformer.adapter.A_log"]))
    for _ in range(loops):
        x = decay * x + size * (e @ w["transformer.adapter.B"].T)
        for number in (2, 3):
            x = parcae_layer(x, w, number, ids)
    x = x @ w["transformer.C.weight"].T
    for number in (4, 5):
        x = parcae_layer(x, w, number, ids)
    return norm(x, w["transformer.ln_f.weight"], 1e-5) @ w["lm_head.weight"].T


def written(folder, config, weights):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    train_tokenizer(["some words to make a tokenizer of, and some more words"], 280).save(folder)
    return folder


@torch.no_grad()
def test_huginn(tmp_path):
    weights = huginn_weights()
    model, plan = read_foreign(written(tmp_path / "theirs", HUGINN, weights), "huginn")
    assert plan.loops == 5
    ids = some_ids(2, 9, vocabulary=300)
    e = model.embed(ids)
    assert model.recurrence.start.std == pytest.approx(0.45)
    for row in range(2):
        start = model.recurrence.start(e)[row]
        for loops in (1, 4):
            wanted = huginn_logits(weights, ids[row], loops, start)
            torch.testing.assert_close(model(ids, loops)[row], wanted, rtol=0, atol=2e-4)


def test_what_a_configuration_of_huginn_leaves_out_follows_from_its_width(tmp_path):
    bare = {name: value for name, value in HUGINN.items() if name not in ("init_values", "num_attention_heads")}
    model, _ = read_foreign(written(tmp_path / "theirs", {**bare, "n_heads": 3}, huginn_weights()), "huginn")
    assert model.config.shape.embed_scale == pytest.approx(math.sqrt(24))
    assert model.config.shape.init_std == pytest.approx(math.sqrt(2 / (5 * 24)))
    assert model.config.options["start"] == "noise"
    (tmp_path / "theirs" / "config.json").write_text(json.dumps({**HUGINN, "state_init": "zero"}))
    assert read_foreign(tmp_path / "theirs", "huginn")[0].config.options["start"] == "zero"


def test_where_ouro_states_its_rotation(tmp_path):
    apart = {name: value for name, value in OURO.items() if name != "rope_theta"}
    stated = {**apart, "rope_parameters": {"rope_theta": 1000.0, "rope_type": "default"}}
    model, _ = read_foreign(written(tmp_path / "theirs", stated, ouro_weights()), "ouro")
    assert model.config.shape.rope_base == 1000.0


@torch.no_grad()
def test_parcae(tmp_path):
    weights = parcae_weights()
    model, plan = read_foreign(written(tmp_path / "theirs", PARCAE, weights), "parcae")
    assert plan.loops == 8
    assert model.recurrence.start.std == pytest.approx(math.sqrt(2 / 200))
    ids = some_ids(2, 9, vocabulary=300)
    start = model.recurrence.begin(model.embed(ids)).start
    for row in range(2):
        for loops in (1, 4):
            wanted = parcae_logits(weights, ids[row], loops, start[row])
            torch.testing.assert_close(model(ids, loops)[row], wanted, rtol=1e-4, atol=2e-3)


@torch.no_grad()
def test_ouro(tmp_path):
    weights = ouro_weights()
    model, plan = read_foreign(written(tmp_path / "theirs", OURO, weights), "ouro")
    assert plan.loops == 3
    ids = some_ids(2, 9, vocabulary=300)
    for row in range(2):
        wanted, gates = ouro_logits(weights, ids[row], 3)
        torch.testing.assert_close(model(ids, 3)[row], wanted, rtol=0, atol=2e-4)
        states = [model.embed(ids), *(model.hidden(ids, loops) for loops in (1, 2, 3))]
        found = torch.stack([model.recurrence.exit(*pair)[row] for pair in pairwise(states)])
        torch.testing.assert_close(found, gates, rtol=0, atol=1e-4)
        spread = model.recurrence.exit.distribution(states)[:, row]
        torch.testing.assert_close(spread.sum(0), torch.ones(9))
        torch.testing.assert_close(spread[1], gates[1] * (1 - gates[0]), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("source", "config", "make"),
    [("huginn", HUGINN, huginn_weights), ("parcae", PARCAE, parcae_weights), ("ouro", OURO, ouro_weights)],
)
def test_the_commands_work_on_an_import(source, config, make, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("scse.diagnostics.pointwise.EXPANSION_ITERATIONS", 2)
    folder, out = written(tmp_path / "theirs", config, make()), tmp_path / "ours"
    assert main(["import", str(folder), str(out), "--from", source, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"]["family"] == source
    assert open_run(out).model.config == read_foreign(folder, source)[0].config
    (tmp_path / "text.txt").write_text("some words to read, and some more words to read after them. " * 20)
    data = ["--data", str(tmp_path / "text.txt"), "--cache-dir", str(tmp_path / "cache"), "--quiet"]
    assert main(["eval", str(out), "--depths", "2", "--limit", "2", "--json", *data]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])[0]["depth"] == 2
    assert main(["diagnose", str(out), "--steps", "2", "--batch", "2", "--json", *data]) == 0
    capsys.readouterr()
    assert main(["generate", str(out), "--prompt", "some", "--loops", "2", "--max-new-tokens", "3"]) == 0
    assert main(["export", str(out), str(tmp_path / "exported"), "--quiet", *data[2:4]]) == 0
    further = [
        "train",
        "--from",
        str(out),
        "--out",
        str(tmp_path / "further"),
        "--steps",
        "2",
        "--precision",
        "float32",
    ]
    changes = [
        "--set",
        "lr=1e-12",
        "--set",
        "warmup=0",
        "--set",
        "batch=2",
        "--depths",
        "uniform:2",
        "--set",
        "dropout=0",
    ]
    assert main([*further, *changes, *data]) == 0
    trained, given = (dict(open_run(path).model.named_parameters()) for path in (tmp_path / "further", out))
    for name, weight in given.items():
        torch.testing.assert_close(trained[name], weight, rtol=1e-6, atol=1e-9)
    assert read_run_config(tmp_path / "further")[0].parent.step == 0
    assert main(["import", str(folder), str(tmp_path / "bare"), "--from", source, "--weights-only"]) == 0
    assert load_model(tmp_path / "bare").config.family == source
    assert main(["eval", str(tmp_path / "bare")]) == 2
    assert "holds a model alone and is no run" in capsys.readouterr().err
    assert main(["import", str(folder), str(out), "--from", source]) == 2
    assert "already exists" in capsys.readouterr().err


def test_a_tokenizer_that_splits_in_its_own_way(tmp_path, capsys):
    """Digits one by one, words by another pattern, and an end of text by another name, as those of other projects."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Backend

    folder = written(tmp_path / "theirs", OURO, ouro_weights())
    theirs = Backend(models.BPE())
    words = pre_tokenizers.Split(Regex(r"[a-z]+ ?|[^a-z]"), "isolated")
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    theirs.decoder = decoders.ByteLevel()
    special, alphabet = [AddedToken("<|end_text|>", special=True)], sorted(pre_tokenizers.ByteLevel.alphabet())
    text = "the loop rests 1234 and the loop rests again. " * 5
    theirs.train_from_iterator(
        [text], trainers.BpeTrainer(vocab_size=290, special_tokens=special, initial_alphabet=alphabet)
    )
    theirs.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end_text|>"}))
    assert main(["import", str(folder), str(tmp_path / "ours"), "--from", "ouro"]) == 0
    ours = open_run(tmp_path / "ours").tokenizer
    assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids
    assert ours.decode(ours.encode(text)) == text
    assert ours.eot_id == theirs.token_to_id("<|end_text|>")
    (tmp_path / "text.txt").write_text(text * 40)
    data = ["--data", str(tmp_path / "text.txt"), "--cache-dir", str(tmp_path / "cache"), "--quiet", "--json"]
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "ours"), "--depths", "2", *data]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    corpus = open_run(tmp_path / "ours").corpus(str(tmp_path / "text.txt"), None, str(tmp_path / "cache"))
    tokens = corpus.split("test").tokens
    assert row["tokens"] == len(tokens) - 1 > 50
    (folder / "tokenizer_config.json").unlink()
    assert main(["import", str(folder), str(tmp_path / "again"), "--from", "ouro"]) == 2
    assert "--weights-only" in capsys.readouterr().err


def test_what_cannot_be_read_is_named(tmp_path):
    weights = huginn_weights()
    for number, (config, tensors, message) in enumerate([
        ({**HUGINN, "mlp_class_name": "BaseMLP"}, weights, "mlp_class_name='BaseMLP'"),
        ({**HUGINN, "n_layers_in_coda": 0}, weights, "no coda"),
        ({name: value for name, value in HUGINN.items() if name != "n_embd"}, weights, "lacks 'n_embd'"),
        ({**HUGINN, "n_embd": 48, "num_attention_heads": 6, "num_key_value_heads": 6}, weights, "has a size"),
        (HUGINN, {n: t for n, t in weights.items() if "adapter" not in n}, "lack 'transformer.adapter.weight'"),
        (HUGINN, weights | {"transformer.extra.weight": torch.zeros(1)}, "for which our model has no place"),
    ]):  # fmt: skip
        folder = written(tmp_path / str(number), config, tensors)
        with pytest.raises(UserError, match=message):
            read_foreign(folder, "huginn")
    for change, message in [
        ({"injection_type": "linear"}, "injection_type='linear'"),
        ({"recurrent_embedding_dimension": 64}, "recurrent_embedding_dimension=64"),
        ({"rope_settings": {"rope_condense_ratio": 2}}, "rope_condense_ratio=2"),
        ({"n_layers_in_prelude": 1}, "without gates"),
    ]:
        (folder / "config.json").write_text(json.dumps(PARCAE | change))
        with pytest.raises(UserError, match=message):
            read_foreign(folder, "parcae")
    for source, config, changes in [
        ("huginn", HUGINN, [("model_type", "gpt2"), ("norm_class_name", "LayerNorm"), ("qk_norm", True)]),
        ("huginn", HUGINN, [("clip_qkv", 5.0), ("logit_softcap", 30.0), ("state_init", "embed")]),
        ("ouro", OURO, [("layer_types", ["sliding_attention"] * 2), ("partial_rotary_factor", 0.5)]),
        ("ouro", OURO, [("attention_bias", True), ("model_type", "llama")]),
    ]:
        for name, value in changes:
            (folder / "config.json").write_text(json.dumps({**config, name: value}))
            with pytest.raises(UserError, match=f"this model has {name}="):
                read_foreign(folder, source)
    (folder / "config.json").write_text(json.dumps({**OURO, "rope_parameters": {"rope_theta": 7.0}}))
    with pytest.raises(UserError, match="rope_theta=7"):
        read_foreign(folder, "ouro")
    (folder / "config.json").write_text(json.dumps(PARCAE))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="is a pickle, which is not opened"):
        read_foreign(folder, "parcae")
    with pytest.raises(UserError, match="did you mean 'ouro'"):
        read_foreign(folder, "uoro")
    with pytest.raises(UserError, match="cannot read"):
        read_foreign(tmp_path / "none", "ouro")


@pytest.mark.parametrize(("source", "config"), [("huginn", HUGINN), ("ouro", OURO), ("parcae", PARCAE)])
def test_a_configuration_may_hold_anything_at_all(source, config, tmp_path):
    """The weights are never reached; whatever a value is, the answer is one line."""
    for name in config:
        for value in (None, 0, -1, "x", [], {}, 1e308, 10**30):
            (tmp_path / "config.json").write_text(json.dumps({**config, name: value}))
            with pytest.raises(UserError) as caught:
                read_foreign(tmp_path, source)
            assert "\n" not in str(caught.value)


@torch.no_grad()
def test_weights_in_several_files(tmp_path):
    weights = ouro_weights()
    folder = written(tmp_path / "theirs", OURO, weights)
    whole, _ = read_foreign(folder, "ouro")
    (folder / "model.safetensors").unlink()
    places = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(weights)}
    for part in set(places.values()):
        save_file({name: weights[name] for name in weights if places[name] == part}, folder / part)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    parts, _ = read_foreign(folder, "ouro")
    assert all(torch.equal(tensor, parts.state_dict()[name]) for name, tensor in whole.state_dict().items())
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
    with pytest.raises(UserError, match="outside of its folder"):
        read_foreign(folder, "ouro")
