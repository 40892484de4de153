"""Every example runs as its first lines say, at a size for tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runs import run, scse, write_corpus

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    base = tmp_path_factory.mktemp("examples")
    run(write_corpus(base / "corpus"), base / "run", steps=3)
    return base


def example(base, name, *arguments):
    environment = {**os.environ, "SCSE_CACHE": str(base / "cache"), "OMP_NUM_THREADS": "1"}
    done = scse([EXAMPLES / name, *arguments], python=True, cwd=base, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_train_your_text(base):
    # A corpus large enough for the mini protocol's vocabulary would take long: the embedded one is cached by no test.
    text = base / "mine.txt"
    text.write_text("\n".join(f"line {n} of my own text, number {n * n}" for n in range(4000)))
    out = example(base, "train_your_text.py", text, "--steps", "2", "--prompt", "line", "--out", base / "mine")
    assert out.count("T = ") == 4


def test_depth_sweep(base):
    out = example(base, "depth_sweep.py", base / "run", "--loops", "8", "--windows", "4")
    assert out.count("perplexity") == 4
    assert "settled after   8 loops: 100.0%" in out


def test_adaptive_generation(base):
    out = example(base, "adaptive_generation.py", base / "run", "--prompt", "the", "--tokens", "6", "--ceiling", "12")
    assert "fixed, T = 8, 8.0 loops per token" in out
    assert "early exit" in out


def test_add_a_family(base):
    assert "forcing at the anchor: 0.0 (claimed zero: True)" in example(base, "add_a_family.py")


def test_diagnose_a_model(base):
    out = example(base, "diagnose_a_model.py", base / "run", "--steps", "8")
    assert "the state is 0 away after 8 steps" in out


def test_fine_tune_with_lora(base):
    assert scse(["export", str(base / "run"), str(base / "out"), "--quiet"]).returncode == 0
    out = example(base, "fine_tune_with_lora.py", base / "out", base / "corpus" / "train.txt", "--steps", "4")
    assert "saved to tuned" in out
    assert (base / "tuned" / "model.safetensors").is_file()


def test_every_example_is_tested():
    tested = Path(__file__).read_text()
    assert all(f'"{path.name}"' in tested for path in EXAMPLES.glob("*.py"))
