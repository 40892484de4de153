"""The yardstick is the same function as the model, and the measuring tools measure."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from scse import LoopedLM, model_config
from scse.bench.compiling import CompilingBench
from scse.bench.evaluation import EvaluationBench
from scse.bench.generation import DecodingBench
from scse.bench.reference import PlainSCSE
from scse.bench.rows import Row
from scse.bench.serving import Depths, ServingBench, paired
from scse.bench.training import StepBench
from scse.cli import main
from scse.measure import best_seconds, peak_bytes, time_by_kind
from tinymodels import TINY, some_ids


def test_the_reference_computes_the_models_loss_and_gradients():
    model = LoopedLM(model_config("scse", TINY)).double().eval()
    plain = PlainSCSE(TINY).double().eval()
    plain.take(model.state_dict())
    ids = some_ids(length=TINY.context)
    ours, theirs = model.nll(ids[:, :-1], ids[:, 1:], 3) / ids[:, 1:].numel(), plain(ids[:, :-1], ids[:, 1:], 3)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
    ours.backward()
    theirs.backward()
    torch.testing.assert_close(model.tokens.weight.grad, plain.tokens.weight.grad, rtol=1e-9, atol=1e-12)
    down = model.recurrence.core.block.mlp.down.weight.grad
    torch.testing.assert_close(down, plain.core.down.weight.grad, rtol=1e-9, atol=1e-12)


def test_peak_memory_counts_what_is_held_at_once():
    def in_turn():
        for _ in range(4):
            torch.empty(2**20)

    def at_once():
        _ = [torch.empty(2**20) for _ in range(4)]

    assert 4 * 2**20 <= peak_bytes(in_turn) < 5 * 2**20
    assert 16 * 2**20 <= peak_bytes(at_once) < 17 * 2**20


def test_the_chunked_loss_needs_less_memory_than_full_logits():
    model, plain = LoopedLM(model_config("scse", "mini")), PlainSCSE(model_config("scse", "mini").shape)
    ids = some_ids(batch=16, length=129, vocabulary=4096)
    ours = peak_bytes(lambda: model.nll(ids[:, :-1], ids[:, 1:], 1).backward())
    assert ours < 0.6 * peak_bytes(lambda: plain(ids[:, :-1], ids[:, 1:], 1).backward())


def test_recompute_keeps_memory_nearly_flat_in_depth():
    model, ids = LoopedLM(model_config("scse", "mini")), some_ids(batch=16, length=129, vocabulary=4096)

    def peak(loops, recompute):
        return peak_bytes(lambda: model.nll(ids[:, :-1], ids[:, 1:], loops, recompute).backward())

    growth_kept, growth_recomputed = (peak(8, r) - peak(2, r) for r in (False, True))
    assert growth_recomputed < 0.15 * growth_kept


def test_time_is_sorted_by_kind_and_adds_up():
    a, b = torch.randn(600, 600), torch.randn(2, 100)
    parts = time_by_kind(lambda: [a @ a for _ in range(40)] + [torch.log_softmax(b, 1)])
    assert next(iter(parts)) == "matrix products"
    assert "softmax of the head" in parts
    assert abs(sum(parts.values()) - 1) < 1e-9


def test_the_shortest_time_is_reported(monkeypatch):
    readings = iter([0.0, 3.0, 3.0, 4.0, 4.0, 6.0])
    monkeypatch.setattr("scse.measure.time", SimpleNamespace(perf_counter=lambda: next(readings)))
    assert best_seconds({"wait": lambda: None}, 3) == {"wait": 1.0}


def test_the_command_prints_every_measure(capsys, monkeypatch):
    monkeypatch.setattr("scse.bench.serving.ROUNDS", 1)
    monkeypatch.setattr("scse.bench.serving.TURNS", 1)
    monkeypatch.setattr("scse.bench.evaluation.WINDOWS", 2)
    monkeypatch.setattr("scse.bench.serving.DEEP", Depths(9, 0.2))
    monkeypatch.setattr("scse.bench.training.measure_rate", lambda *_, **__: 1e11)
    assert main(["bench", "--scale", "mini", "--tokens", "128", "--repeats", "1", "--json"]) == 0
    printed = capsys.readouterr()
    report = json.loads(printed.out)
    measures = " ".join(row["measure"] for row in report["rows"])
    for part in (
        "matrix-product rate",
        "float32 reference",
        "bfloat16 reference",
        "peak memory",
        "one more loop",
        "FLOP bound",
        "9 depths of one unroll",
        "early exit, mean 8 loops, over T = 48",
    ):
        assert part in measures
    # However often they told of their progress, the parts come to as many pieces as they announce.
    assert [line.split(" pieces")[0] for line in printed.err.splitlines() if ": done, " in line] == [
        f"bench, training: done, {StepBench('mini', 128, 1).pieces}",
        f"bench, generation: done, {DecodingBench('mini', 1).pieces}",
        f"bench, evaluation: done, {EvaluationBench('mini', 1).pieces}",
        f"bench, serving: done, {ServingBench('mini', 1).pieces}",
    ]
    assert main(["bench", "--repeats", "0"]) == 2


@pytest.mark.parametrize(
    ("only", "parts"),
    [
        ([], ["training", "generation", "evaluation", "serving"]),
        (["--only", "training"], ["training"]),
        (["--only", "generation"], ["generation"]),
        (["--only", "evaluation"], ["evaluation"]),
        (["--only", "serving"], ["serving"]),
    ],
    ids=["all", "training", "generation", "evaluation", "serving"],
)
def test_the_table_says_which_bars_were_met(only, parts, monkeypatch, capsys):
    monkeypatch.setattr(
        StepBench, "run", lambda self, meter: iter([Row("step", 0.9, "×", "≥ 1", False), Row("rate", 7, "G")])
    )
    monkeypatch.setattr(DecodingBench, "run", lambda self, meter: iter([Row("token", 1.2, "×", "≤ 1.5", True)]))
    monkeypatch.setattr(EvaluationBench, "run", lambda self, meter: iter([Row("depths", 0.6, "×", "≤ 0.45", False)]))
    monkeypatch.setattr(ServingBench, "run", lambda self, meter: iter([Row("served", 1.1, "×", "≤ 1.02", False)]))
    assert main(["bench", "--scale", "mini", "--tokens", "256", "--device", "cpu", *only]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title.strip() == "mini on cpu; training with 256 tokens a step"
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    expected = {
        "training": [["training", "step", "0.9", "×", "≥ 1", "no", ""], ["training", "rate", "7", "G", "", "", ""]],
        "generation": [["generation", "token", "1.2", "×", "≤ 1.5", "yes", ""]],
        "evaluation": [["evaluation", "depths", "0.6", "×", "≤ 0.45", "no", ""]],
        "serving": [["serving", "served", "1.1", "×", "≤ 1.02", "no", ""]],
    }
    assert rows == [row for part in parts for row in expected[part]]


def test_the_drawn_exits_take_about_eight_loops(monkeypatch):
    """The mean of 128 draws has a spread of 0.7; the bench corrects for what it is off by."""
    monkeypatch.setattr("scse.bench.evaluation.WINDOWS", 128)
    bench = EvaluationBench("mini", 1)
    bench._exit_early()
    assert 4 < bench.mean_loops < 12


def test_a_ratio_is_the_median_over_turns_that_followed_each_other():
    slow_minute = 10.0  # which hits both alike
    assert paired([2.0, 2.0 * slow_minute, 9.0], [1.0, slow_minute, 1.0]) == 2.0


def test_peers_have_our_flops_and_take_turns_with_us(monkeypatch):
    from scse.bench import peers

    bench, meter = peers.PeersBench("mini", 1, 256), Counted()
    monkeypatch.setattr(bench, "repeats", 1)
    ours, looped = bench.shape, bench.peers["x-transformers, looped"]
    block = 4 * ours.width**2 + 3 * ours.width * ours.ff_width
    matrices = [weight.numel() for weight in looped.model.attn_layers.parameters() if weight.dim() == 2]
    assert sum(matrices) == block, "one layer with our block's matrices, applied as often"
    rows = list(bench.run(meter))
    assert meter.passed == bench.pieces, "progress ends where it said it would"
    measures = [row.measure for row in rows]
    for name in ("GPT-2", "Llama", "x-transformers, looped"):
        assert f"a token, 1 row, {name}" in measures
        assert f"the same of {name} over ours" in measures
    assert "a token, 16 rows, x-transformers, looped" not in measures, "it takes one row at a time"


def test_without_transformers_there_are_no_peers(monkeypatch):
    from scse.bench import peers

    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    bench = peers.PeersBench("mini", 1, 256)
    monkeypatch.setattr(bench, "repeats", 1)
    rows = list(bench.run())
    assert bench.peers == {}
    assert all(row.value > 0 for row in rows)
    assert {row.measure for row in rows if row.unit == "ms"} == {
        f"a token, {rows}, {precision}" for rows in ("1 row", "16 rows") for precision in bench.models
    }


class Counted:
    """A meter that counts."""

    passed = 0.0

    def advance(self, n: float = 1) -> None:
        self.passed += n

    def describe(self, text: str) -> None:
        raise AssertionError(text)


def test_compiled_and_plain_take_turns(monkeypatch):
    monkeypatch.setattr(LoopedLM, "compile_step", lambda model: setattr(model, "compiled", True))
    bench, meter = CompilingBench("mini", 16, 1), Counted()
    rows = list(bench.run(meter))
    assert meter.passed == bench.pieces, "progress ends where it said it would"
    assert [row.unit for row in rows] == ["ms", "×"] * 2
    assert all(row.value > 0 for row in rows)
