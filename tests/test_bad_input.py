"""Mistakes in calls give a ValueError that says what to do."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors import SafetensorError

from scse import LoopedLM, ModelConfig, Shape, UserError, load_model, model_config, save_model
from scse.persistence import build
from tinymodels import TINY, some_ids, tiny


@pytest.mark.parametrize("loops", [0, -3])
def test_loops_below_one(loops):
    with pytest.raises(ValueError, match="loops must be at least 1"):
        tiny("scse")(some_ids(), loops)


def test_context_longer_than_the_positions():
    with pytest.raises(ValueError, match=r"17 tokens are more than the model's 16 positions; cut"):
        tiny("scse")(some_ids(length=17), 1)


@pytest.mark.parametrize("bad", [-1, TINY.vocabulary])
def test_token_ids_out_of_range(bad):
    ids = some_ids()
    ids[1, 3] = bad
    with pytest.raises(ValueError, match=f"token id {bad} is outside the vocabulary of 61"):
        tiny("scse")(ids, 1)


@pytest.mark.parametrize("ids", [torch.zeros(3, dtype=torch.long), torch.zeros(0, 4, dtype=torch.long)])
def test_ids_of_the_wrong_shape(ids):
    with pytest.raises(ValueError, match=r"\[batch, positions\]"):
        tiny("scse")(ids, 1)


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="7 heads do not divide the width 24; use for example 6 heads"):
        Shape(width=24, heads=7, ff_width=48)


@pytest.mark.parametrize(
    ("field", "value"),
    [("width", 0), ("context", 0), ("vocabulary", -1), ("dropout", 1.0), ("norm_eps", 0.0), ("init_std", -1.0)],
)
def test_impossible_shapes(field, value):
    with pytest.raises(ValueError, match=field):
        dataclasses.replace(TINY, **{field: value})


def test_sizes_beyond_sense():
    with pytest.raises(ValueError, match="ff_width must be at most 100,000,000, got 1e\\+18"):
        dataclasses.replace(TINY, ff_width=10**18)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("scze", {}, "unknown family 'scze'; did you mean 'scse'?"),
        ("unshared-x", {}, "unknown family"),
        ("unshared-²", {}, "unknown family"),
        ("scse", {"step_scal": 1}, "did you mean 'step_scale'?"),
        ("scse", {"anchor": "lerned"}, "did you mean 'learned'?"),
        ("scse", {"step_scale": "fast"}, "'step_scale' must be a finite number, got 'fast'"),
        ("scse", {"step_scale": "nan"}, "'step_scale' must be a finite number"),
        ("scse", {"mask": "maybe"}, "'mask' must be true or false"),
        ("scse", {"mask_threshold": -1.0}, "mask_threshold must not be negative"),
        ("norm-reset", {"reset_period": 0}, "reset_period must be at least 1"),
        ("norm-reset", {"reset_period": 2.5}, "'reset_period' must be a whole number"),
        ("film-adapter", {"film_steps": 0}, "film_steps must be at least 1"),
        ("leak", {"leak": 1.5}, "leak must be between 0 and 1"),
        ("unshared-0", {}, "layers must be at least 1"),
        ("unshared-N", {}, "'unshared-N' stands for any number: write 'unshared-8'"),
        ("unshared-4", {"layers": 3}, "has its layers in its name: use 'unshared-3' instead"),
    ],
)
def test_families_and_options(family, options, message):
    with pytest.raises(UserError) as caught:
        tiny(family, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_scale():
    with pytest.raises(ValueError, match="did you mean '22m'"):
        model_config("scse", "22M")


def test_configurations_with_missing_or_unknown_keys():
    data = model_config("scse", TINY).to_dict()
    assert ModelConfig.from_dict(data) == model_config("scse", TINY)
    with pytest.raises(ValueError, match="lacks 'heads'"):
        ModelConfig.from_dict({**data, "shape": {k: v for k, v in data["shape"].items() if k != "heads"}})
    with pytest.raises(ValueError, match="did you mean 'heads'"):
        ModelConfig.from_dict({**data, "shape": {**data["shape"], "head": 3}})
    with pytest.raises(ValueError, match="needs 'family'"):
        ModelConfig.from_dict({"shape": data["shape"]})
    older = {**data, "options": {k: v for k, v in data["options"].items() if k != "anchor"}}
    assert LoopedLM(ModelConfig.from_dict(older)), "an option that came later has its neutral default"


class TestDamagedModelFolders:
    @pytest.fixture
    def folder(self, tmp_path):
        save_model(tiny("scse", dtype=torch.float32), tmp_path)
        return tmp_path

    def test_nothing_there(self, tmp_path):
        with pytest.raises(ValueError, match=r"no config\.json"):
            load_model(tmp_path / "absent")

    def test_broken_json(self, folder):
        (folder / "config.json").write_text('{"format": ')
        with pytest.raises(ValueError, match="not valid JSON"):
            load_model(folder)

    def test_another_format(self, folder):
        (folder / "config.json").write_text('{"format": 99}')
        with pytest.raises(ValueError, match="format 99; this version reads 2"):
            load_model(folder)

    def test_truncated_weights(self, folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            load_model(folder)
        with pytest.raises(ValueError, match="cannot read the weights"):
            build(tiny("scse").config, path)

    def test_missing_weights(self, folder):
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match="cannot read the weights"):
            load_model(folder)

    def test_weights_of_another_model_that_took_its_place(self, folder, tmp_path):
        save_model(tiny("looped", dtype=torch.float32), tmp_path / "other")
        (tmp_path / "other" / "model.safetensors").replace(folder / "model.safetensors")
        with pytest.raises(ValueError, match="does not have the hash"):
            load_model(folder)

    def test_weights_of_another_family(self, folder):
        with pytest.raises(ValueError, match="does not belong to this configuration"):
            build(tiny("looped").config, folder / "model.safetensors")

    @pytest.mark.parametrize(
        ("field", "size", "message"),
        [("ff_width", 96, "has shape"), ("vocabulary", 10**8, "has shape"), ("ff_width", 10**8, "has shape")],
    )
    def test_weights_of_another_shape(self, folder, field, size, message):
        """Found out before anything of that size is allocated."""
        config = tiny("scse").config
        config = dataclasses.replace(config, shape=dataclasses.replace(config.shape, **{field: size}))
        with pytest.raises(ValueError, match=message):
            build(config, folder / "model.safetensors")

    def test_weights_of_another_type(self, folder):
        save_model(tiny("scse", dtype=torch.float64), folder)
        with pytest.raises(ValueError, match=r"another type than torch\.float32"):
            load_model(folder)


def test_weights_that_cannot_be_written_name_their_file(tmp_path, monkeypatch):
    def full(*_, **__):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("scse.persistence.save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*model\.safetensors: I/O error: No space left"):
        save_model(tiny("scse", dtype=torch.float32), tmp_path)
    assert list(tmp_path.iterdir()) == []
