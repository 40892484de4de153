"""The Hugging Face shell computes what the one model computes, for every family, and generates the same."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, set_seed

import scse.hf
from scse.errors import UserError
from scse.hf import ScseCache, ScseConfig, ScseForCausalLM
from scse.nn.storage import ALIGNMENT
from tinymodels import SHAPES, TINY, VALUED, shift_tensors, some_ids, tiny

END = 60


def dressed(family, loops=4, dtype=torch.float64, **options):
    """A shell around a tiny model."""
    model = tiny(family, dtype=dtype, **options)
    shell = ScseForCausalLM(ScseConfig.of(model.config, loops, eos_token_id=END, pad_token_id=END)).to(dtype).eval()
    shell.model.load_state_dict(model.state_dict())
    return shell, model


def greedily(model, ids, loops, count):
    for _ in range(count):
        ids = torch.cat([ids, model(ids, loops)[:, -1:].argmax(-1)], 1)
    return ids


@torch.no_grad()
def test_saving_and_loading_keeps_the_function(family, tmp_path):
    shell, model = dressed(family, dtype=torch.float32)
    shell.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ScseForCausalLM
    assert AutoConfig.from_pretrained(tmp_path).model_config() == model.config
    ids = some_ids()
    assert torch.equal(loaded(ids).logits, model(ids, 4))
    assert torch.equal(loaded(ids, num_loops=7).logits, model(ids, 7))
    trained = {name for name, p in loaded.model.named_parameters() if p.requires_grad}
    assert trained == {name for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def test_the_place_of_weights_in_a_file_changes_no_bit(family, tmp_path):
    """`transformers` maps the file, so a longer header moves every weight to another address."""
    shell, model = dressed(family, dtype=torch.float32)
    shell.save_pretrained(tmp_path)
    alone = some_ids(1, 1)  # products with a single row are the ones that an address can change
    for shift in (0, 4, 12):
        shift_tensors(tmp_path / "model.safetensors", shift)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert {p.data_ptr() % ALIGNMENT for p in loaded.parameters()} == {0}
        assert torch.equal(loaded(alone).logits, model(alone, 4))


@torch.no_grad()
def test_generation_with_a_cache_equals_recomputing(family):
    shell, model = dressed(family)
    ids = some_ids(3, 5)
    found = shell.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, num_loops=3, eos_token_id=None)
    assert found.tolist() == greedily(model, ids, 3, 8).tolist()


@torch.no_grad()
def test_left_padding_beams_and_sampling(family):
    shell, model = dressed(family)
    ids = some_ids(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    plain = {"attention_mask": mask, "max_new_tokens": 4, "eos_token_id": None}
    batch = shell.generate(ids, **plain)
    assert batch[0].tolist() == greedily(model, ids[:1], 4, 4)[0].tolist()
    assert batch[1, 3:].tolist() == greedily(model, ids[1:, 3:], 4, 4)[0].tolist()
    for options in ({"num_beams": 3}, {"do_sample": True, "top_k": 0}):
        results = []
        for use_cache in (True, False):
            set_seed(3)
            results.append(shell.generate(ids, use_cache=use_cache, **plain, **options).tolist())
        assert results[0] == results[1]


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        (
            torch.tensor([[5, 6, 7], [5, 6, 7]]),
            [[1, 1, 1], [1, 1, 0]],
            "set tokenizer.padding_side = 'left' to generate",
        ),
        (torch.tensor([[5, 6, 7], [5, 6, 7]]), [[1, 1, 1], [0, 0, 0]], "a row of the prompt is nothing but padding"),
        (torch.zeros(1, 0, dtype=torch.long), None, "the prompt is empty"),
        (torch.zeros(0, 3, dtype=torch.long), None, "the prompt is empty"),
        (None, None, "the prompt is empty"),
    ],
    ids=["right padding", "all padding", "no tokens", "no rows", "nothing"],
)
def test_prompts_that_cannot_be_continued_are_refused_in_one_line(ids, mask, message, caplog):
    shell, _ = dressed("scse")
    given = {} if mask is None else {"attention_mask": torch.tensor(mask)}
    with pytest.raises(UserError, match=message) as refused:
        shell.generate(ids, max_new_tokens=2, **given)
    assert "\n" not in str(refused.value)
    assert not caplog.records, "transformers has nothing to add"


@torch.no_grad()
def test_depth_comes_from_the_call_then_the_generation_config_then_the_model():
    shell, model = dressed("scse", loops=2)
    ids = some_ids(1, 5)
    plain = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 8, "eos_token_id": None, "pad_token_id": END}

    def depth_of(found):
        return [loops for loops in (2, 3, 9) if greedily(model, ids, loops, 8).tolist() == found.tolist()]

    assert len({str(greedily(model, ids, loops, 8).tolist()) for loops in (2, 3, 9)}) == 3
    assert depth_of(shell.generate(ids, **plain)) == [2]
    passed = GenerationConfig(num_loops=3, max_new_tokens=8, pad_token_id=END)
    assert depth_of(shell.generate(ids, generation_config=passed, attention_mask=plain["attention_mask"])) == [3]
    shell.generation_config.num_loops = 3
    assert depth_of(shell.generate(ids, **plain)) == [3]
    assert depth_of(shell.generate(ids, **plain, num_loops=9)) == [9]


def test_a_negative_label_does_not_count_and_half_a_loop_is_refused():
    shell, _ = dressed("scse")
    ids = some_ids(1, 9)
    losses = []
    for ignored in (-100, -1):
        labels = ids.clone()
        labels[0, 3] = ignored
        losses.append(shell(ids, labels=labels).loss)
    assert losses[0] == losses[1]
    for wrong in (2.5, "2", [1.5]):
        with pytest.raises(UserError, match="num_loops must be a whole number"):
            shell(ids, num_loops=wrong)


def test_an_adapter_of_any_linear_map_is_trained_where_the_map_would_be(family):
    import peft

    shell, _ = dressed(family, dtype=torch.float32)
    ids = some_ids()
    shell.train()(input_ids=ids, labels=ids, num_loops=3).loss.backward()
    trained = {name for name, p in shell.named_parameters() if p.grad is not None and p.grad.any()}
    shell.zero_grad()
    tuned = peft.get_peft_model(shell, peft.LoraConfig(r=2, target_modules="all-linear")).train()
    tuned(input_ids=ids, labels=ids, num_loops=3).loss.backward()
    adapters = {name.split(".lora_B")[0]: p.grad for name, p in tuned.named_parameters() if ".lora_B" in name}
    used = {name.removeprefix("base_model.model.") for name, g in adapters.items() if g is not None and g.any()}
    adapted = {name.removeprefix("base_model.model.") for name in adapters}
    assert adapted & {name.removesuffix(".weight") for name in trained} <= used
    assert adapted


@torch.no_grad()
def test_early_exit_and_depth_per_row_in_generate():
    shell, model = dressed("scse", spread=0.08)
    ids = some_ids(2, 5)
    plain = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 6, "eos_token_id": None}
    rows = shell.generate(ids, num_loops=torch.tensor([1, 6]), **plain)
    assert rows[0].tolist() == greedily(model, ids[:1], 1, 6)[0].tolist()
    assert rows[1].tolist() == greedily(model, ids[1:], 6, 6)[0].tolist()
    exits = [shell.generate(ids, num_loops=9, exit_threshold=0.3, use_cache=c, **plain).tolist() for c in (True, False)]
    assert exits[0] == exits[1]
    assert exits[0] != shell.generate(ids, num_loops=9, **plain).tolist() or exits[0] == rows.tolist()


@torch.no_grad()
def test_hidden_states_are_one_per_loop(family):
    shell, model = dressed(family)
    ids = some_ids()
    states = shell(ids, num_loops=5, output_hidden_states=True).hidden_states
    assert len(states) == 6
    for loops in range(1, 6):
        assert torch.equal(states[loops], model.hidden(ids, loops))
    cached = shell(ids, num_loops=5, output_hidden_states=True, use_cache=True)
    assert isinstance(cached.past_key_values, ScseCache)
    torch.testing.assert_close(cached.hidden_states[5], states[5], rtol=0, atol=1e-12)


def test_the_loss_is_the_mean_over_labels_and_has_the_same_gradient(family):
    shell, model = dressed(family)
    ids = some_ids()
    labels = ids.clone()
    labels[0, :4] = -100
    loss = shell(ids, labels=labels).loss
    logits = model(ids, 4)
    wanted = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(loss, wanted, rtol=0, atol=1e-12)
    loss.backward()
    wanted.backward()
    ours, theirs = dict(shell.model.named_parameters()), dict(model.named_parameters())
    for name, parameter in theirs.items():
        if parameter.grad is not None:
            torch.testing.assert_close(ours[name].grad, parameter.grad, rtol=0, atol=1e-9)


def test_padding_anywhere_is_invisible_and_differentiable(family):
    shell, model = dressed(family)
    ids = some_ids(2, 8)
    mask = torch.ones_like(ids)
    mask[0, :3], mask[1, 6:] = 0, 0
    logits = shell(ids, attention_mask=mask).logits
    torch.testing.assert_close(logits[0, 3:], model(ids[:1, 3:], 4)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(logits[1, :6], model(ids[1:, :6], 4)[0], rtol=0, atol=1e-12)
    logits[mask.bool()].sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in shell.parameters() if p.grad is not None)


def test_gradient_checkpointing_changes_no_gradient():
    shell, _ = dressed("scse")
    ids = some_ids()
    gradients = []
    for recompute in (False, True):
        shell.train()
        if recompute:
            shell.gradient_checkpointing_enable()
        torch.manual_seed(0)
        shell.zero_grad()
        shell(ids, labels=ids).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in shell.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, rtol=0, atol=1e-12)


def test_training_never_holds_all_logits():
    shell, _ = dressed("scse")
    ids = some_ids()
    assert shell.train()(ids, labels=ids).logits is None
    assert shell.eval()(ids, labels=ids).logits is not None
    assert shell(ids, logits_to_keep=1).logits.shape[1] == 1


@pytest.mark.parametrize(("call", "message"), [
    (lambda m, ids: m(ids, num_loops=0), "loops must be at least 1"),
    (lambda m, ids: m(ids, num_loops=[1, 2]), "2 loop counts were given for 3 rows"),
    (lambda m, ids: m(ids, num_loops=[1, 2, 3], output_hidden_states=True), "same number of loops"),
    (lambda m, ids: m(ids.repeat(1, 2)), "more than the model's 16 positions"),
    (lambda m, ids: m(ids, output_attentions=True), "output_attentions are not supported"),
    (lambda m, ids: m(inputs_embeds=torch.zeros(1, 2, 24)), "pass input_ids"),
    (lambda m, ids: m(ids, position_ids=torch.zeros_like(ids)), "position_ids other than"),
    (lambda m, ids: m.generate(ids, max_new_tokens=30), "more than the model's 16 positions"),
    (lambda m, ids: m.generate(ids, max_new_tokens=2, cache_implementation="static"), "its own cache"),
    (lambda m, ids: m.train()(ids, use_cache=True), "a cache is for generation"),
    (lambda m, ids: m.generate(ids[:1], max_new_tokens=4, prompt_lookup_num_tokens=2), "assisted generation"),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_mistakes_are_named(call, message):
    shell, _ = dressed("scse")
    with pytest.raises(UserError, match=message):
        call(shell, some_ids())


@pytest.mark.filterwarnings("ignore")
def test_an_unknown_generation_option_is_refused():
    shell, _ = dressed("scse")
    with pytest.raises(ValueError, match="num_lops"):
        shell.generate(some_ids(), max_new_tokens=2, num_lops=3)


def test_the_shell_adds_no_weights():
    shell, model = dressed("scse")
    assert {f"model.{name}" for name in model.state_dict()} == set(shell.state_dict())
    assert scse.hf.ScseConfig.of(model.config, 4).model_config().shape == TINY


@torch.no_grad()
def test_a_cache_of_a_prompt_is_shared_by_several_continuations():
    shell, model = dressed("scse")
    ids, more = some_ids(2, 5), some_ids(4, 1, seed=6)
    cache = ScseCache()
    cache.batch_repeat_interleave(2)
    cache.batch_select_indices(torch.tensor([0]))
    assert cache.get_seq_length() == 0, "an empty cache has no rows to repeat or select"
    shell(ids, past_key_values=cache)
    cache.batch_repeat_interleave(2)
    found = shell(more, past_key_values=cache).logits[:, -1]
    whole = torch.cat([ids.repeat_interleave(2, 0), more], 1)
    torch.testing.assert_close(found, model(whole, 4)[:, -1], rtol=0, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("depths", [(4, 2, 4), (4, (2, 3), 4)], ids=["all rows", "each row its own"])
@pytest.mark.parametrize("family", ["looped", "scse", "step-adapter", "forcing-subtraction"])
def test_positions_that_took_fewer_loops_are_seen_as_they_ended(family, depths):
    """A chat with a depth for each turn: deeper turns see what a shallow one left, and nothing is left unset."""
    shell, model = dressed(family)
    parts = some_ids(2, 3), some_ids(2, 3, seed=6), some_ids(2, 3, seed=7)
    cache = ScseCache()
    for ids, loops in zip(parts, depths, strict=True):
        found = shell(ids, past_key_values=cache, num_loops=loops).logits
        for store in (cache.kv.keys, cache.kv.values):
            store[:, :, :, cache.kv.length :] = torch.nan  # what was reserved and not yet written
            assert store[:, :, :, : cache.kv.length].isfinite().all()
    whole = torch.cat(parts, 1)
    taken = torch.cat([torch.tensor(loops).expand(2)[:, None].expand(2, 3) for loops in depths], 1)
    frame = model.recurrence.begin(model.embed(whole))
    z = frame.start
    for t in range(4):  # without a cache: a position stays where it is after its last loop
        z = torch.where((taken > t)[..., None], model.recurrence.step(t, z, frame), z)
    wanted = model.head(model.outputs(model.recurrence.hidden(z, frame)))
    torch.testing.assert_close(found, wanted[:, -3:], rtol=0, atol=1e-12)


@torch.no_grad()
def test_new_tokens_have_a_place(tmp_path):
    for tied in (True, False):
        shell, _ = dressed("scse", shape=replace(TINY, tied=tied), dtype=torch.float32)
        shell.resize_token_embeddings(TINY.vocabulary + 3)
        ids = torch.tensor([[1, TINY.vocabulary + 2]])
        logits = shell(ids).logits
        assert logits.shape[-1] == TINY.vocabulary + 3
        shell.save_pretrained(tmp_path / str(tied))
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path / str(tied))
        torch.testing.assert_close(loaded(ids).logits, logits, rtol=0, atol=1e-5)
    valued, _ = dressed("scse", shape=VALUED)
    with pytest.raises(UserError, match="cannot take other tokens"):
        valued.resize_token_embeddings(TINY.vocabulary + 3)


def test_weights_that_a_folder_lacks_are_named(tmp_path):
    shell, _ = dressed("scse", dtype=torch.float32)
    shell.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = dict(list(weights.items())[1:])
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=re.escape(f"the weights lack '{next(iter(weights))}'")):
        AutoModelForCausalLM.from_pretrained(tmp_path)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    _, about = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not about["missing_keys"]


@torch.no_grad()
def test_hidden_states_are_as_wide_as_the_model_says():
    shell, _ = dressed("parcae", shape=VALUED)
    states = shell(some_ids(), num_loops=2, output_hidden_states=True).hidden_states
    assert {state.shape[-1] for state in states} == {shell.config.hidden_size}


def test_value_embeddings_are_refused_where_they_would_vanish():
    shell, _ = dressed("parcae", shape=VALUED, dtype=torch.float16)
    with pytest.raises(UserError, match="do not survive float16"):
        shell(some_ids())


@torch.no_grad()
def test_other_embeddings_take_the_place_of_the_models():
    shell, model = dressed("scse")
    other = torch.nn.Embedding(TINY.vocabulary, TINY.width, dtype=torch.float64)
    shell.set_input_embeddings(other)
    assert shell.get_input_embeddings() is other
    model.tokens.weight.copy_(other.weight)
    ids = some_ids()
    assert torch.equal(shell(ids).logits, model(ids, 4)), "as input and as head"


@pytest.mark.parametrize("family", ["scse", "huginn", "parcae", "ouro", "universal", "centred-parcae"])
@torch.no_grad()
def test_prelude_and_coda_in_the_shell(family, tmp_path):
    shell, model = dressed(family, shape=SHAPES["everything"])
    ids = some_ids(2, 6)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    found = shell.generate(ids, attention_mask=mask, max_new_tokens=5, eos_token_id=None)
    assert found[0].tolist() == greedily(model, ids[:1], 4, 5)[0].tolist()
    assert found[1, 3:].tolist() == greedily(model, ids[1:, 3:], 4, 5)[0].tolist()
    padded = shell(ids, attention_mask=mask).logits
    torch.testing.assert_close(padded[1, 3:], model(ids[1:, 3:], 4)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(shell(ids, labels=ids).loss, torch.nn.functional.cross_entropy(
        model(ids, 4)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()), rtol=0, atol=1e-12)  # fmt: skip
    shell.float().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.model_config() == model.config
    torch.testing.assert_close(loaded(ids).logits, shell(ids).logits, rtol=0, atol=1e-6)
