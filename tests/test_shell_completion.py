"""The completion scripts, in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from scse.cli import COMMANDS, command_parser, main
from scse.cli.completion import described_commands
from scse.config import PROTOCOLS
from scse.suites import SUITES


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        with pytest.MonkeyPatch.context() as patch, (folder / shell).open("w", encoding="utf-8") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    return folder


def completed(scripts, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    probe = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _scse; printf "%s\\n" "${COMPREPLY[@]}"'
    arguments = ["bash", "--norc", "-c", probe, "bash", str(scripts / "bash"), "scse", *words]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=scripts, timeout=60, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands(scripts):
    assert completed(scripts, "tr") == ["train", "train-exit"]
    assert completed(scripts, "e") == ["eval", "export"]
    assert set(completed(scripts, "")) == {*COMMANDS, "--help", "--version"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--fam"], ["--family"]),
        (["train", "--family", "sc-cond-"], ["sc-cond-unmasked", "sc-cond-subtractive"]),
        (["train", "--family", "=", "leak"], ["leak"]),
        (["train", "--scale", "1"], ["137m"]),
        (["families", "film"], ["film-adapter"]),
        (["suite", "pl"], ["plan"]),
        (["suite", "plan", "lam"], ["lambada"]),
        (["suite", "plan", "lambada", "tran"], ["transfer"]),
        (["generate", "run", "--rule", "rel"], ["relative"]),
        (["bench", "--only", ""], ["training", "generation", "evaluation", "serving", "peers", "compiling"]),
        (["serve", "run", "--exit-rule", "rel"], ["relative"]),
        (["completion", "z"], ["zsh"]),
        (["train", "--steps", ""], []),
        (["nothing", ""], []),
        (["eval", "fi"], ["fish"]),
        (["train", "--out", "zs"], ["zsh"]),
    ],
    ids=" ".join,
)
def test_bash_completes_options_names_and_files(scripts, words, expected):
    assert completed(scripts, *words) == expected


def test_bash_knows_every_protocol_and_suite(scripts):
    assert completed(scripts, "train", "--protocol", "") == list(PROTOCOLS)
    assert completed(scripts, "suite", "run", "") == [*SUITES.names(), "all"]


def test_every_option_of_every_command_is_in_every_script(scripts):
    text = {shell: (scripts / shell).read_text(encoding="utf-8") for shell in ("bash", "zsh", "fish")}
    for command in described_commands():
        for name in (name for action in command_parser(command.name)._actions for name in action.option_strings):
            assert any(name in option.names for option in command.options)
            assert name in text["bash"]
            assert f"{name}[" in text["zsh"]
            assert f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')} " in text["fish"]


@pytest.mark.parametrize(("shell", "check"), [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_the_shell_can_read_its_script(scripts, shell, check):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [shell, *check, str(scripts / shell)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_fish_completes_names(scripts):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    probe = f"source {scripts / 'fish'}; complete -C 'scse train --family film'; complete -C 'scse tr'"
    done = subprocess.run(["fish", "-N", "-c", probe], capture_output=True, text=True, timeout=60, check=True)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["film-adapter", "train", "train-exit"]


def test_an_unknown_shell_is_one_line(capsys):
    assert main(["completion", "bsh"]) == 2
    assert "did you mean 'bash'?" in capsys.readouterr().err
