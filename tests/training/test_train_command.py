"""`scse train` as a user types it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runs import SCSE, command, scse
from scse.cli import main


def test_a_run_from_the_command_line(corpus, tmp_path):
    out = tmp_path / "out"
    result = scse(command(corpus, out, "--family", "tuned-adapter", "--tensorboard", "--json"))
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert summary.pop("ppl") > 1
    assert summary == {"run": str(out), "step": 9, "finished": True}
    assert re.search(r"^tuned-adapter 9/9 loss \d+\.\d+ T=\d \d+% peak: ", result.stderr, re.MULTILINE)

    config = json.loads((out / "config.json").read_text())
    assert config["train"]["model"]["options"]["step_scale"] == 0.35
    assert set(config["data"]) == {"train", "validation", "tokenizer"}
    assert config["provenance"]["torch"].startswith("2.")
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 10))
    assert {"loss", "loops", "lr", "grad_norm", "tokens_per_second", "matmul_share"} <= rows[0].keys()
    assert any("validation_ppl" in row and row["validation_loops"] == 3 for row in rows)
    assert list((out / "tensorboard").glob("events*"))

    shutil.rmtree(out / "checkpoints" / "step-9")
    again = scse(command(corpus, out, "--family", "tuned-adapter"))
    assert f"scse: continuing {out} from step 6" in again.stderr
    assert again.returncode == 0
    assert "9 steps done, validation perplexity" in again.stdout


def test_progress_on_a_terminal_of_80_columns(corpus, tmp_path):
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    arguments = command(corpus, tmp_path / "out", "--family", "forcing-subtraction")
    process = subprocess.Popen([SCSE, *arguments], stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the terminal is gone when the command has ended
        while block := os.read(ours, 4096):
            shown += block
    os.close(ours)
    assert process.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    lines = [line.rstrip() for line in re.split(r"[\r\n]+", plain)]
    assert max(len(line) for line in lines if line.startswith("forcing-subtraction")) <= 80
    last = r"forcing-subtraction 9/9 loss \d\.\d{3} T=\d \d+% peak ━+ [\d.]+k? tok/s \d:\d\d:\d\d"
    assert any(re.fullmatch(last, line) for line in lines), plain


def test_a_run_finds_its_text_again_from_another_folder(corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    monkeypatch.chdir(corpus.parent)
    assert main([*command(corpus, out, "--quiet"), "--data", "corpus"]) == 0
    monkeypatch.chdir(tmp_path)
    assert main([*command(corpus, out, "--quiet"), "--data", str(corpus)]) == 0
    assert main(["eval", str(out), "--depths", "1", "--quiet", "--cache-dir", str(tmp_path / "cache")]) == 0


def test_the_home_folder_by_its_sign(corpus, tmp_path, monkeypatch):
    """A shell leaves ~ alone behind an equals sign, and so do configuration files and Python."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(command(corpus, Path("~/run"), "--quiet")) == 0
    data = ["--cache-dir", str(tmp_path / "cache"), "--quiet"]
    assert main(["eval", "~/run", "--depths", "1", *data]) == 0
    assert (tmp_path / "run" / "records.jsonl").is_file()


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--family", "scze"], "did you mean 'scse'?"),
        (["--protocol", "wikitext2"], "did you mean 'wikitext-2'?"),
        (["--set", "lr"], "--set takes name=value, got 'lr'"),
        (["--set", "depth=9"], "unknown option 'depth' of a run of 'scse'"),
        (["--strategy", "fsdpp"], "did you mean 'fsdp'?"),
        (["--set", "heads=5"], "5 heads do not divide the width 24"),
        (["--data", "wikitex-2"], "did you mean 'wikitext-2'?"),
        (["--checkpoint-every", "0"], "checkpoint_every must be at least 1"),
        (["--out", ""], "--out is empty"),
        (["--data", "no/such/file.txt"], "there is no file or folder no/such/file.txt"),
        (["--data", "~nobody-of-that-name/x"], "cannot tell which home folder"),
        (["--data", "x" * 5000], "cannot look at"),
        (["--set", "max_loops=100000000000000000000"], "whole number of sensible size"),
        (["--set", "dropout=0.999999"], "between 0 and 0.99"),
        (["--family", "unshared-100000"], "at most 1000"),
        (["--vocab", "0"], "needs bpe-257 or more"),
        (["--data", ""], "unknown corpus ''"),
        (["--set", "steps=3"], "--steps and --set steps=3 both say it; keep one of them"),
        (["--seed", "-1"], "expected a whole number from 0 to 2^63 - 1, got '-1'"),
        (["--seed", str(2**63)], "expected a whole number from 0 to 2^63 - 1"),
    ],
)
def test_mistakes(corpus, tmp_path, extra, message):
    result = scse(command(corpus, tmp_path / "out", *extra))
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out" / "config.json").exists()


def test_a_model_that_does_not_fit_leaves_nothing_behind(corpus, tmp_path):
    too_wide = ["--quiet", "--set", "width=100000000", "--set", "heads=1"]
    result = scse(command(corpus, tmp_path / "out", *too_wide))
    assert result.returncode == 2
    assert result.stderr.endswith("scse: not enough memory; use a smaller model, batch or context, or --recompute\n")
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"caf\xe9 au lait, not in UTF-8", "UTF-8"),
        (b"text\x00with\x00nulls", "binary"),
        (b"a few words only", "too few for a context of 16"),
    ],
)
def test_unusable_text(tmp_path, content, message):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        (folder / f"{split}.txt").write_bytes(content)
    result = scse(command(folder, tmp_path / "out"))
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not list((tmp_path / "cache").rglob("train.bin")) or message.startswith("too few")


def test_a_validation_split_without_anything_to_predict(corpus, tmp_path, capsys):
    (corpus / "validation.txt").write_text("a")
    assert main(command(corpus, tmp_path / "out", "--quiet")) == 2
    assert capsys.readouterr().err.endswith("validation split of 'corpus' has fewer than 2 tokens; give it more text\n")
    assert not (tmp_path / "out").exists()


def test_tensorboard_that_is_not_installed_is_one_line(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(command(corpus, tmp_path / "out", "--quiet", "--tensorboard")) == 2
    assert capsys.readouterr().err == "scse: TensorBoard is not installed; run: pip install 'scse[tensorboard]'\n"


def test_without_a_vocabulary_the_scale_decides_on_the_tokenizer(corpus, tmp_path, capsys):
    arguments = command(corpus, tmp_path / "out", "--quiet", steps=1)
    place = arguments.index("--vocab")
    assert main(arguments[:place] + arguments[place + 2 :]) == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["train"]["tokenizer"] == "bpe-4096"
