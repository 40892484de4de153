"""Costs on other hardware: counted as the model counts them, told plainly."""

from __future__ import annotations

import json

import pytest

from runs import run as train_run
from runs import write_corpus
from scse.accounting import count_parameters, skeleton
from scse.cli import main
from scse.config import SCALES, assemble, protocol
from scse.flops import layer_flops, step_flops
from scse.planning import (
    ACCELERATORS,
    GIB,
    PLANNED,
    activation_bytes,
    layer_parameters,
    layers_alone,
    memory,
    parameters,
    strategies,
    weight_bytes,
)


def planned(name: str):
    return assemble("scse", {**PLANNED[name], "steps": 1})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("family", ["scse", "looped", "tuned-adapter", "unshared-4", "huginn"])
def test_parameters_are_those_of_the_model_but_for_what_a_family_adds(scale, family):
    config = assemble(family, {"scale": scale, "steps": 1})
    counted = count_parameters(config.model).active
    extra = 8 * config.model.shape.width**2  # adapters, gates, anchors
    assert parameters(config) <= counted <= parameters(config) + extra


@pytest.mark.parametrize("name", PLANNED)
def test_planned_shapes_can_be_built_and_have_the_size_they_are_called(name):
    config = planned(name)
    assert parameters(config) == pytest.approx(1e9 * int(name[0]), rel=0.12)
    assert count_parameters(config.model).active == pytest.approx(parameters(config), rel=0.02)


@pytest.mark.parametrize("family", ["scse", "forcing-subtraction", "unshared-4", "huginn"])
def test_a_step_costs_its_products(family):
    """The row counts applications of the core as the recurrence does, of which each is known."""
    config = assemble(family, {"scale": "22m", "steps": 1})
    recurrence, shape = skeleton(config.model).recurrence, config.model.shape
    depth = recurrence.core.trained_depth or 4.5
    forward = shape.core * recurrence.body_applications(depth) * layer_flops(shape) + 2 * shape.width * shape.vocabulary
    assert step_flops(config) == pytest.approx(3 * 4096 * forward)


def test_memory_by_strategy():
    config = planned("7b")
    count = parameters(config)
    assert weight_bytes(count, "ddp", 1) == 18 * count
    assert weight_bytes(count, "fsdp", 64) < 0.6 * weight_bytes(count, "ddp", 64)
    alone = weight_bytes(count, "fsdp", 64) - weight_bytes(count, "fsdp", 64, alone=count // 2, layer=count // 20)
    assert alone == 10 * (count // 2) - 8 * (count // 20), "layers of their own are not there but for two"
    whole, recomputed = (memory(config, "fsdp", 64, 8, 80 * GIB, recompute) for recompute in (False, True))
    assert recomputed.activations < whole.activations
    layer = layer_parameters(config.model.shape)
    held = {strategy: memory(config, strategy, 64, 8, 1e15, True).weights for strategy in strategies(64, 8)}
    assert (
        held["fsdp"] < held["hsdp"] == weight_bytes(count, "fsdp", 8, layers_alone(config) * layer, layer) < held["ddp"]
    )
    assert [strategies(gpus, 8) for gpus in (1, 8)] == [("ddp",), ("ddp", "fsdp")]
    roomy = memory(config, "fsdp", 64, 8, 1e15, False)
    assert roomy.micro_batches == 1 < whole.micro_batches, "a batch is divided until it fits"


def answer(capsys, *words):
    assert main(["plan", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_times_follow_gpus_and_utilisation(capsys):
    words = ("--scale", "1b", "--tokens", "2e9", "--accelerator", "a100")
    one, eight = (answer(capsys, *words, "--gpus", str(gpus))["times"][0] for gpus in (1, 8))
    assert one["hours"] == pytest.approx(8 * eight["hours"])
    assert one["gpu_hours"] == pytest.approx(eight["gpu_hours"])
    (twelve,) = answer(capsys, *words, "--gpus", "12", "--utilisation", "0.7")["times"]
    assert twelve["nodes"] == 2
    assert twelve["hours"] == pytest.approx(one["hours"] / 24)
    assert twelve["tokens_per_second"] * twelve["hours"] * 3600 == pytest.approx(2e9, rel=1e-3)


def test_memory_is_that_of_the_loops_with_gradients(capsys):
    def most(*changes):
        words = (word for change in changes for word in ("--set", change))
        found = answer(capsys, "--scale", "1b", "--gpus", "1", "--accelerator", "h100", *words)
        return found["memory"][0]["micro_batches"], found["flops"]

    def activations(**changes):
        return activation_bytes(assemble("scse", {**protocol("mini"), **changes}), 4, recompute=False)

    assert activations(backprop=2) == activations(depths="fixed:2") < activations()
    assert activations(depths="poisson:8") > activations(depths="uniform:8") == activations(depths="fixed:8")
    assert activations(depths="lognormal-poisson:8", backprop=4) == activations(depths="fixed:4")
    assert most("backprop=2")[0] <= most()[0]
    assert most("objective=last+fixed-point")[1] > most()[1]
    by_option = answer(capsys, "--scale", "1b", "--gpus", "1", "--accelerator", "h100", "--backprop", "2")
    assert by_option["flops"] == most("backprop=2")[1]


def test_a_planned_shape_is_trained_on_twenty_tokens_per_parameter(capsys):
    found = answer(capsys, "--scale", "7b", "--gpus", "64")
    assert found["tokens"] == pytest.approx(20 * found["parameters"], rel=0.01)
    assert found["checkpoint_bytes"] == 12 * found["parameters"]
    assert {row["accelerator"] for row in found["times"]} == set(ACCELERATORS)


def test_suites_are_the_sum_of_their_runs(capsys):
    found = answer(capsys, "anchor-design", "--preset", "mini", "--steps", "10")
    assert found["runs"] > 4
    assert found["tokens"] == found["runs"] * 10 * 16 * 128
    assert "memory" not in found


def test_a_run_here_is_the_yardstick(tmp_path, capsys, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus")
    train_run(corpus, tmp_path / "run", steps=3)
    monkeypatch.setattr("scse.training.speed.matmul_rate", lambda *_: 1e12)
    found = answer(capsys, "--scale", "mini", "--steps", "10", "--against", str(tmp_path / "run"))["here"]
    assert found["share"] == pytest.approx(found["flops_per_second"] / 1e12)
    assert found["hours"] > 0
    assert main(["plan", "--scale", "mini", "--steps", "10", "--against", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "this machine: " in said
    assert "a width of 128 keeps no large GPU busy" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--accelerator", "h10"], "unknown accelerator 'h10'; did you mean 'h100'"),
        (["--scale", "8b"], "6x288, 1b, 3b, 7b)"),
        (["--gpus", "0"], "--gpus must be at least 1"),
        (["--utilisation", "2"], "--utilisation must be between 0 and 1"),
        (["--tokens", "nan"], "--tokens must be a sensible number"),
        (["ablations", "--depths", "fixed:8"], "--depths describes one run, and ablations is a suite"),
        (["--protocol", "mini", "--objective", "last+0.1*ponder"], "'ponder' needs halting probabilities"),
        (["--protocol", "mini", "--depths", "fixed:8", "--set", "depths=fixed:9"], "both say it"),
        (["ablation"], "unknown suite 'ablation'; did you mean 'ablations'"),
    ],
)
def test_mistakes_are_one_line(words, said, capsys):
    assert main(["plan", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
