"""`--device` and `--precision`: on every command that computes, refused in one line, stated in the record."""

from __future__ import annotations

import json

import pytest
import torch

from runs import run, write_corpus
from scse.cli import COMMANDS, command_parser, main
from scse.config import RunOptions
from scse.devices import compiles, device_name, resolve_device, wide
from scse.errors import UserError
from scse.model import LoopedLM
from scse.processes import world
from scse.records import FILE, read_records
from scse.runs import open_run
from scse.tasks.anchor import Diagnose
from scse.tasks.base import Selection

WITHOUT = {"import", "families", "params", "flops", "data", "completion", "report", "compare", "plan", "load-test"}
INFERRING = {"eval", "adaptive", "pareto", "lambada", "profile", "generate", "lens", "serve"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("devices")
    run(write_corpus(home / "corpus"), home / "run", steps=2)
    return home / "run"


@pytest.fixture
def machine(monkeypatch):
    """A machine with so many GPUs, and perhaps an Apple chip."""

    def has(gpus: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    has()
    return has


def options(command):
    return {name for action in command_parser(command)._actions for name in action.option_strings}


def test_every_command_that_computes_takes_a_device():
    assert {name for name in COMMANDS if "--device" not in options(name)} == WITHOUT
    assert {name for name in COMMANDS if "--precision" in options(name)} == INFERRING | {"train"}


def test_names_of_devices(machine):
    assert resolve_device() == resolve_device("cpu") == torch.device("cpu")
    machine(gpus=2)
    assert resolve_device() == resolve_device("cuda") == resolve_device("cuda:0") == torch.device("cuda:0")
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("cpu") == torch.device("cpu")
    machine(mps=True)
    assert resolve_device() == torch.device("mps")
    assert resolve_device(float64=True) == torch.device("cpu"), "it has no float64"
    assert wide(torch.device("mps")) == torch.float32
    assert wide(torch.device("cuda:0")) == torch.float64


@pytest.mark.parametrize(("gpus", "name", "said"), [
    (0, "cuda", "there is no device 'cuda' here"),
    (0, "mps", "use --device cpu"),
    (1, "cuda:3", "torch sees only cuda:0"),
    (2, "cuda:3", "torch sees cuda:0 to cuda:1"),
    (2, "cuda:x", "cuda:N, the N-th GPU"),
    (2, "cpu:1", "unknown device 'cpu:1'"),
    (2, "cudaa", "did you mean 'cuda'"),
])  # fmt: skip
def test_a_device_that_is_not_there_is_refused_with_a_remedy(machine, gpus, name, said):
    machine(gpus)
    with pytest.raises(UserError, match=said):
        resolve_device(name)


def test_several_processes_do_not_share_one_device(machine, monkeypatch):
    machine(gpus=2)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="cannot share cuda:1"), world("cuda:1"):
        pass


@pytest.mark.parametrize("command", [
    ["eval", "RUN"], ["profile", "RUN"], ["diagnose", "RUN"], ["generate", "RUN", "--prompt", "x"],
    ["lens", "RUN", "--text", "x"], ["train", "--out", "elsewhere", "--steps", "1"], ["check", "looped"], ["bench"],
    ["suite", "plan", "cost-profile"], ["suite", "run", "cost-profile"], ["demo"],
])  # fmt: skip
def test_commands_refuse_it_in_one_line(machine, folder, tmp_path, monkeypatch, capsys, command):
    monkeypatch.chdir(tmp_path)
    arguments = [str(folder) if part == "RUN" else part for part in command]
    assert main([*arguments, "--device", "cuda"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("scse: ")
    assert "use --device cpu or auto" in printed.err
    assert printed.err.count("\n") == 1


def test_a_record_says_where_and_in_which_precision(folder, capsys):
    (folder / FILE).unlink(missing_ok=True)  # other tests may have evaluated the same run
    for more in ([], ["--precision", "bfloat16"], ["--precision", "int8"]):
        told = ["--limit", "4", "--depths", "2", "--json", "--quiet", "--device", "cpu", *more]
        assert main(["eval", str(folder), *told]) == 0
    plain, *low = (json.loads(line)[0]["ppl"] for line in capsys.readouterr().out.splitlines())
    assert plain not in low
    assert low == pytest.approx([plain] * 2, rel=0.02)
    first, second, third = read_records([folder / FILE])
    assert "settings" not in first.identity, "what is usual is not stated, as in every record before"
    assert second.identity["settings"] == {"precision": "bfloat16"}
    assert third.identity["settings"] == {"precision": "int8"}
    for record in (first, second, third):
        assert record.facts["device"] == "cpu"
        assert record.facts["device_name"] == device_name(torch.device("cpu")) != ""


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_what_infers_does_so_in_fewer_bits(folder, capsys, precision):
    low = ["--precision", precision, "--json"]
    commands = [
        ["generate", str(folder), "--prompt", "the state", "--max-new-tokens", "3", "--adaptive", "0.1"],
        ["lens", str(folder), "--text", "the state moves", "--loops", "2"],
        ["profile", str(folder), "--depths", "1", "--repeats", "1", "--batch", "2", "--quiet"],
        ["adaptive", str(folder), "--budgets", "2", "--ceiling", "3", "--mode", "online", "--limit", "4", "--quiet"],
    ]
    for command in commands:
        assert main([*command, *low]) == 0, capsys.readouterr().err
    capsys.readouterr()
    assert main(["eval", str(folder), "--precision", "float16"]) == 2
    assert "unknown precision 'float16'" in capsys.readouterr().err
    assert main(["serve", str(folder), "--precision", "bfloat16"]) == 2
    assert "served in float32 or int8" in capsys.readouterr().err


def test_diagnostics_are_not_made_of_a_rounded_map(folder):
    opened = open_run(folder, precision="bfloat16")
    with pytest.raises(UserError, match="diagnostics are not made in bfloat16"):
        Diagnose().at(opened, Selection(show=False), 1, 1, [0])


def test_where_a_run_computes_is_not_part_of_it(folder):
    assert RunOptions(device="cpu") != RunOptions()
    assert "device" not in open_run(folder).config.to_dict()


COMPILED = {"train", "eval", "adaptive", "pareto", "lambada", "profile", "generate"}


@pytest.mark.parametrize(("told", "answer"), [
    ([], "off"), (["--compile"], "on"), (["--compile", "auto"], "auto"), (["--compile=off"], "off"),
])  # fmt: skip
def test_whether_steps_are_compiled_is_asked_in_three_ways(told, answer):
    assert {name for name in COMMANDS if "--compile" in options(name)} == COMPILED
    for words in ([*told, "RUN"], ["RUN", *told]):
        args = command_parser("eval").parse(words)
        assert (args.compile, args.run) == (answer, "RUN"), "a run that follows is not an answer"
    assert RunOptions(compile=answer).compile == answer


def test_what_auto_compiles(monkeypatch):
    monkeypatch.setattr("scse.devices.which", lambda name: name)
    cpu, gpu = torch.device("cpu"), torch.device("cuda:0")
    assert [compiles(wanted, cpu) for wanted in ("auto", "off", "on", True, False)] == [False, False, True, True, False]
    assert [compiles(wanted, gpu) for wanted in ("auto", "off", "on")] == [True, False, True]
    assert [compiles("auto", cpu, tokens) for tokens in (64, 10**5)] == [False, True], "where it comes back"
    with pytest.raises(UserError, match="did you mean 'auto'"):
        RunOptions(compile="aut")


def test_without_a_compiler_it_says_so(folder, monkeypatch, capsys):
    monkeypatch.setattr("scse.devices.which", lambda name: None)
    assert main(["eval", "--compile", str(folder)]) == 2
    assert "needs a C++ compiler (g++) on this device; install one, or leave --compile out" in capsys.readouterr().err


def test_a_record_and_a_run_say_that_they_were_compiled(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("scse.devices.which", lambda name: name)
    assert "compiled" not in open_run(folder).facts()
    assert open_run(folder, compiled="on").facts()["compiled"] is True
    corpus = write_corpus(tmp_path / "corpus")
    monkeypatch.setattr(LoopedLM, "compile_step", lambda model: setattr(model, "compiled", True))
    for name, how in (("plain", "auto"), ("compiled", "on")):
        run(corpus, tmp_path / name, steps=1, run_options={"compile": how})
        assert open_run(tmp_path / name).step == 1
    said = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("plain", "compiled")]
    assert [one.get("compiled") for one in said] == [None, True]
