"""The installed command, as a user runs it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import forked
import scse as package
from scse import FAMILIES
from scse.cli import main
from scse.config import SCALES

SCSE = Path(sys.executable).with_name("scse")


def installed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCSE, *arguments], capture_output=True, text=True, check=False)


def scse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.scse(arguments)


def test_help_lists_the_commands():
    result = installed("--help")
    assert result.returncode == 0
    for command in ("families", "params", "flops"):
        assert f"  {command} " in result.stdout


def test_help_loads_no_package_but_ours_and_so_starts_at_once():
    probe = (
        "import sys; before = set(sys.modules); import scse.cli; scse.cli.main(['--help'])\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "sys.exit(' '.join(loaded - sys.stdlib_module_names - {'scse'}) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False).stderr == ""


def test_parameters_and_flops_follow_the_options():
    plain, wider = (
        json.loads(scse("params", "--family", "parcae", "--scale", "mini", "--json", *more).stdout)["active"]
        for more in ((), ("--set", "ff_width=513"))
    )
    assert wider - plain == 3 * 128
    (row,) = json.loads(scse("flops", "--scale", "mini", "--depths", "8", "--set", "core=2", "--json").stdout)
    (one,) = json.loads(scse("flops", "--scale", "mini", "--depths", "8", "--json").stdout)
    assert row["body"] == 2 * one["body"]


def test_version():
    assert installed("--version").stdout.startswith("scse 0.")


def test_params_of_one_model():
    result = scse("params", "--family", "scse", "--scale", "137m", "--json")
    assert json.loads(result.stdout) == {
        "family": "scse",
        "scale": "137m",
        "active": 133_685_760,
        "paper": 136_454_656,
    }


def test_params_lists_everything_without_arguments():
    rows = json.loads(scse("params", "--json").stdout)
    assert {"family": "step-adapter", "scale": "137m", "active": 139_223_553, "paper": 139_223_553} in rows
    assert len({(row["family"], row["scale"]) for row in rows}) == len(rows) == len(FAMILIES) * len(SCALES)


def test_flops():
    rows = {(row["scale"], row["depth"]): row for row in json.loads(scse("flops", "--json").stdout)}
    assert round(rows["22m", 8]["body"] / 1e6, 1) == 39.3
    assert round(rows["96m", 8]["body_head"] / 1e6, 1) == 553.3
    (longer,) = json.loads(
        forked.scse(["flops", "--scale", "22m", "--depths", "8", "--context", "512", "--json"]).stdout
    )
    assert longer["body"] - rows["22m", 8]["body"] == 8 * 4 * (512 - 128) * 384


def test_families_for_people_and_for_programs():
    text = scse("families")
    assert text.returncode == 0
    assert "h' = h + s·B(h + αW_in h* + τP_step γ_t)" in text.stdout
    rows = {row["family"]: row for row in json.loads(scse("families", "--json").stdout)}
    assert rows["scse"]["step"] == "Δ' = Δ + m·s·G(Δ)"
    assert rows["scse"]["zero"] == "raw"
    assert rows["tuned-adapter"]["options"]["step_scale"] == 0.35


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["famlies"], "did you mean 'families'?"),
        (["params", "--family", "scze"], "did you mean 'scse'?"),
        (["params", "--scale", "22M"], "did you mean '22m'?"),
        (["params", "--famly", "scse"], "did you mean '--family'?"),
        (["params", "scse"], "unknown argument 'scse'"),
        (["params", "--family"], "expected one argument"),
        (["flops", "--depths", "8,x"], "whole numbers separated by commas"),
        (["flops", "--depths", "0"], "at least 1"),
        (["flops", "--context", "-1"], "context must be at least 1"),
        (["flops", "--context", "long"], "invalid int value"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(arguments, message):
    result = forked.scse(arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_output_into_a_closed_pipe_is_quiet():
    result = subprocess.run(f"{SCSE} families | head -1", shell=True, capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr
    assert "BrokenPipe" not in result.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["families", "--help"], ["suite", "list", "--json"]], ids=" ".join)
def test_a_reader_that_has_gone_is_no_failure(arguments):
    """The output is buffered, as into any pipe, so that the missing reader shows when it is flushed."""
    reader, writer = os.pipe()
    os.close(reader)
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    result = subprocess.run([SCSE, *arguments], stdout=writer, stderr=subprocess.PIPE, env=buffered, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device", "out.json"),
            1,
            "out.json: No space left on device; mend this",
        ),
        (OSError("the disk went away"), 1, "the disk went away; mend this and run the same command again"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "not enough memory"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_in_a_command_is_one_line_and_a_code(error, code, message, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr("scse.cli.families.run", fail)
    assert main(["families"]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"scse: {message}")
    assert said.count("\n") == 1


def test_a_fault_of_the_program_is_not_hidden(monkeypatch):
    def fail(_):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("scse.cli.families.run", fail)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        main(["families"])


def test_the_package_lists_the_names_that_it_loads_when_used():
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("arguments", ["families", "params --family scse", "suite plan ablations --only scse"])
def test_commands_that_compute_nothing_do_not_load_the_compiler(arguments):
    """It takes longer than all the rest."""
    code = (
        f"import sys; from scse.cli import main; main({arguments.split()!r}); sys.exit('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
