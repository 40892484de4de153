"""A script that lets a shell complete commands, options, families, scales, protocols and suites.

  bash  eval "$(scse completion bash)"    in ~/.bashrc
  zsh   eval "$(scse completion zsh)"     in ~/.zshrc, after compinit
  fish  scse completion fish | source     in ~/.config/fish/config.fish

The script holds all names, so that completing starts nothing; print it anew after an update.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from scse.cli.common import Arguments
from scse.errors import checked_choice
from scse.precision import INFERENCE, TRAINING


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", help="bash, zsh or fish")


def run(args: Arguments) -> None:
    shells: dict[str, Callable[[list[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
    write = shells[checked_choice("shell", args.shell, shells)]
    print(write(described_commands()))


@dataclass(frozen=True)
class Option:
    """What a shell needs to know. `values` are the names it takes; None stands for files, () for nothing known."""

    names: tuple[str, ...]
    help: str
    takes_value: bool
    values: tuple[str, ...] | None


@dataclass(frozen=True)
class Command:
    name: str
    help: str
    options: tuple[Option, ...]
    words: tuple[Option, ...]


def described_commands() -> list[Command]:
    """Every command, as its own parser has it."""
    from scse.cli import COMMANDS, command_parser

    known = names_by_argument()
    commands = []
    for name, line in COMMANDS.items():
        parser = command_parser(name)
        arguments = [described(name, action, known) for action in parser._actions]
        options = tuple(argument for argument in arguments if argument.names)
        words = tuple(argument for argument in arguments if not argument.names)
        commands.append(Command(name, line, options, words))
    return commands


def described(command: str, action: argparse.Action, known: dict[str, tuple[str, ...]]) -> Option:
    """`known` is asked for '<command> <argument>' first, then for the argument's name alone."""
    names = known.get(f"{command} {action.dest}", known.get(action.dest))
    if names is None and action.choices is not None:
        names = tuple(map(str, action.choices))
    if names is None and action.type is not None:
        names = ()  # numbers
    text = " ".join((action.help or "").replace("%%", "%").split())
    return Option(tuple(action.option_strings), text, action.nargs != 0, names)


def names_by_argument() -> dict[str, tuple[str, ...]]:
    """The names that an argument takes, by its name in the parsers; what is not here takes files or numbers."""
    from scse.cli.data import ACTIONS as DATA_ACTIONS
    from scse.config import PROTOCOLS, SCALES
    from scse.config.adaptive import MODES
    from scse.config.training import STRATEGIES
    from scse.evaluation.rules import RULES
    from scse.families import FAMILIES
    from scse.planning import ACCELERATORS, PLANNED
    from scse.suites import SUITES
    from scse.suites.presets import PRESETS

    families = tuple(family.example for family in FAMILIES)
    return {
        "family": families,
        "families name": families,
        "scale": tuple(SCALES),
        "protocol": tuple(PROTOCOLS),
        "preset": tuple(PRESETS),
        "suites": tuple(SUITES.names()),
        "suite action": ("list", "plan", "run", "status", "cancel"),
        "suite names": (*SUITES.names(), "all"),
        "plan names": (*SUITES.names(), "all"),
        "plan scale": (*SCALES, *PLANNED),
        "accelerator": tuple(ACCELERATORS),
        "data action": DATA_ACTIONS,
        "rule": tuple(RULES.names()),
        "exit_rule": tuple(RULES.names()),
        "mode": tuple(MODES),
        "split": ("train", "validation", "test"),
        "precision": INFERENCE,
        "train precision": TRAINING,
        "strategy": STRATEGIES,
        "cache": ("exact", "shared"),
        "completion shell": ("bash", "zsh", "fish"),
        **dict.fromkeys(("prompt", "tag", "set", "slurm_set", "gain", "host", "api_key", "serve name", "url"), ()),
    }


def bash(commands: list[Command]) -> str:
    """A function that looks at the command, then at the word before the one to complete."""
    cases = "\n".join(bash_case(command) for command in commands)
    names = quoted([*(command.name for command in commands), "--help", "--version"])
    return f"""# bash completion of scse
_scse() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" command="${{COMP_WORDS[1]}}"
  local options="" words="" values="-" place=$((COMP_CWORD - 2))
  COMPREPLY=()
  if [ "$word" = "=" ]; then word=""; elif [ "$before" = "=" ]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  if [ "$COMP_CWORD" -eq 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W {names} -- "$word")
    return
  fi
  case "$command" in
{cases}
  *) return ;;
  esac
  if [ "$values" = "-" ]; then
    if [[ "$word" == -* ]]; then values="$options"; else values="$words"; fi
  fi
  if [ "$values" = "/" ]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  else
    mapfile -t COMPREPLY < <(compgen -W "$values" -- "$word")
  fi
}}
complete -F _scse scse"""


def bash_case(command: Command) -> str:
    """'/' as values or words means files."""
    taking = [option for option in command.options if option.takes_value]
    values = "".join(
        f"\n    {'|'.join(option.names)}) values={quoted(['/'] if option.values is None else option.values)} ;;"
        for option in taking
    )
    first, *others = command.words or (Option((), "", False, ()),)
    later = others[0] if others else first
    lines = [f"  {command.name})", f"    options={quoted(n for option in command.options for n in option.names)}"]
    lines.append(f"    words={quoted(['/'] if later.values is None else later.values or ())}")
    if others:
        lines.append(f'    [ "$place" -eq 0 ] && words={quoted(first.values or ())}')
    if values:
        lines.append(f'    case "$before" in{values}\n    esac')
    return "\n".join([*lines, "    ;;"])


def zsh(commands: list[Command]) -> str:
    """A function for each command, called with what `_arguments` wants to know."""
    names = "\n".join(f"    {shlex.quote(f'{c.name}:{c.help}')}" for c in commands)
    cases = "\n".join(f"    {c.name}) _arguments {zsh_arguments(c)} ;;" for c in commands)
    return f"""#compdef scse
_scse() {{
  local -a commands
  commands=(
{names}
  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case "$words[1]" in
{cases}
  esac
}}
compdef _scse scse"""


def zsh_arguments(command: Command) -> str:
    specifications = []
    for option in command.options:
        value = f":value:{zsh_values(option)}" if option.takes_value else ""
        specifications += [f"{name}[{zsh_text(option.help)}]{value}" for name in option.names]
    for place, word in enumerate(command.words):
        last = place == len(command.words) - 1
        specifications.append(f"{'*' if last else place + 1}:{zsh_text(word.help)}:{zsh_values(word)}")
    return " ".join(map(shlex.quote, specifications))


def zsh_values(option: Option) -> str:
    return "_files" if option.values is None else f"({' '.join(option.values)})" if option.values else " "


def zsh_text(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def fish(commands: list[Command]) -> str:
    """A line for each command, option and word."""
    lines = ["# fish completion of scse", "complete -c scse -f"]
    for command in commands:
        lines.append(f"complete -c scse -n __fish_use_subcommand -a {command.name} -d {fish_text(command.help)}")
        here = f"complete -c scse -n '__fish_seen_subcommand_from {command.name}'"
        for option in command.options:
            flags = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = "" if not option.takes_value else " -r -F" if option.values is None else " -x"
            names = f" -a {fish_text(' '.join(option.values))}" if option.takes_value and option.values else ""
            lines.append(f"{here} {flags}{value}{names} -d {fish_text(option.help)}")
        for word in command.words:
            lines.append(f"{here} -F" if word.values is None else f"{here} -a {fish_text(' '.join(word.values))}")
    return "\n".join(lines)


def fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quoted(names: Iterable[str]) -> str:
    return shlex.quote(" ".join(names))
