"""The command line. Each command lives in its own module, imported only when it is called."""

from __future__ import annotations

import importlib
import io
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from keyword import iskeyword
from types import ModuleType

from scse.cli.common import Parser
from scse.cli.text import Fitted, print_text, wrapped
from scse.errors import RunFailure, UserError, unknown_name
from scse.signals import Terminated, stops_raise

SECONDS_TO_SPEAK = 30.0

# name -> what `scse --help` says; the module is scse.cli.<name>, with _ for - and after a name that Python keeps
COMMANDS = {
    "demo": "the main job in miniature: train three families, turn the depth knob",
    "train": "train a model; the same command again continues it",
    "train-exit": "an exit gate for a finished run: when is one more loop worth it?",
    "eval": "perplexity or accuracy of a run at fixed depths, all from one unroll",
    "diagnose": "forcing bias, energies and gain around the anchor, step by step",
    "theory": "what the forcing bias did to a trajectory and its loss: the counterfactual decomposition",
    "lens": "see what every loop does to every token: a page, or live",
    "export": "a run as a folder that transformers loads",
    "import": "weights of another project as a run",
    "generate": "continue a text at any depth, with a cache and early exit",
    "serve": "a run or an export over HTTP, as OpenAI's API, with depth per request",
    "load-test": "ask a server much at once: throughput, latencies, depth, errors",
    "lambada": "last-word completion: perplexity and accuracy of the answers",
    "adaptive": "calibrated early exit: mean loop budgets, offline accounting and real savings",
    "pareto": "quality against FLOPs, time and cache memory",
    "profile": "latency, throughput and memory of each depth",
    "suite": "a table or figure of the paper: plan, run and follow its runs",
    "sweep": "options × values × seeds: run every combination, select on validation",
    "compare": "any runs beside each other: mean ± deviation over seeds, by what differs",
    "report": "tables, figures and claims from records, the paper's value beside ours",
    "bench": "performance ratios against a plain reference",
    "families": "every recurrence family, or all about one: equation, options, anchor, parameters",
    "check": "run the laws on a family, yours included",
    "params": "parameter counts, ours and as the paper counts",
    "flops": "the paper's FLOP proxies per token",
    "plan": "what a run or a suite would cost on other hardware: hours, GPUs, memory",
    "data": "the corpora and problems there are; examples, preparing and verifying",
    "completion": "a script that lets bash, zsh or fish complete commands, options and names",
}

# Those that the processes of torchrun carry out together; any other would be done, and recorded, by each of them.
TOGETHER = ("train", "eval", "adaptive", "lambada", "suite", "sweep")


def usage() -> str:
    width, terminal = max(map(len, COMMANDS)), shutil.get_terminal_size().columns
    said = [
        "usage: scse COMMAND [options]",
        "",
        "Looped Transformer language models: one block, applied T times.",
        "",
        "commands:",
        *(f"  {name:<{width}}  {line}" for name, line in COMMANDS.items()),
        "",
        "'scse COMMAND --help' explains a command; 'scse --version' prints the version.",
    ]
    return "".join(f"{line}\n" for text in said for line in wrapped(text, terminal))


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 for a failed run, 2 for a user's mistake (one line on stderr)."""
    with stops_raise():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Fitted("scse: %(message)s"))
    logging.basicConfig(handlers=[handler])
    logging.getLogger("scse").setLevel(logging.INFO)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # equations on a terminal that cannot show them
    try:
        try:
            return dispatch(arguments)
        finally:
            sys.stdout.flush()  # here, where a closed pipe is still answered, and not at exit
    except UserError as error:
        return complain(error, 2)
    except RunFailure as failure:
        return complain(failure, 1)
    except BrokenPipeError:
        # The reader of our output went away (`scse … | head`): point stdout elsewhere so that exit stays quiet.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return complain(f"{where}{error.strerror or error}; mend this and run the same command again", 1)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            if processes() > 1:
                wait_for_another_process_to_speak()  # the connection to it may be all that failed here
            raise
        return complain("not enough memory; use a smaller model, batch or context, or --recompute", 2)
    except KeyboardInterrupt:
        return complain("interrupted", 130) if leads() else 130
    except Terminated:
        return complain("terminated", 143) if leads() else 143


def complain(message: object, code: int) -> int:
    """One line on stderr, from one process of a run: the leader's if it fails too, and its exit code with it.

    On a terminal it breaks at words.
    """
    if leads():
        print_text(f"scse: {message}", sys.stderr)
    else:
        wait_for_another_process_to_speak()
        print_text(f"scse: process {os.environ['RANK']}: {message}", sys.stderr)
    return code


def processes() -> int:
    """How many torchrun has started."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def leads() -> bool:
    return os.environ.get("RANK", "0") == "0"


def wait_for_another_process_to_speak() -> None:
    """Leave it to the process that failed first to say why. torchrun then ends this one, within the wait."""
    time.sleep(SECONDS_TO_SPEAK)


def out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed: Python's, torch's on a CPU (an untyped error), or torch's on a GPU (a subclass)."""
    signs = ("can't allocate memory", "out of memory", "Storage size calculation overflowed")
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


def dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage(), end="")
        return 0
    name, *rest = arguments
    if name == "--version":
        from importlib.metadata import version

        print(f"scse {version('scse')}")
        return 0
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS, hint="'scse --help' lists all")
    if processes() > 1 and name not in TOGETHER:
        raise UserError(f"'scse {name}' runs in one process; start it without torchrun, or unset WORLD_SIZE")
    rest, files = take_imports(rest)
    let_in(files)
    args = command_parser(name).parse(rest)
    args.words = arguments  # for commands that have themselves run elsewhere
    return int(command_module(name).run(args) or 0)


def take_imports(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The arguments without `--import FILE`, which every command takes, and the files."""
    rest, files = [], []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--import":
            file = next(waiting, None)
            if file is None:
                raise UserError("--import takes a Python file")
            files.append(file)
        elif argument.startswith("--import="):
            files.append(argument.partition("=")[2])
        else:
            rest.append(argument)
    return rest, files


def let_in(files: Sequence[str]) -> None:
    """Import installed guests, and the files the user names; only then are names looked up."""
    from scse.registry import import_guest, import_installed_guests

    import_installed_guests()
    for file in files:
        import_guest(file)


def command_module(name: str) -> ModuleType:
    return importlib.import_module(f"scse.cli.{name.replace('-', '_')}{'_' * iskeyword(name)}")


def command_parser(name: str) -> Parser:
    module = command_module(name)
    parser = Parser(prog=f"scse {name}", description=module.__doc__)
    module.add_arguments(parser)
    parser.add_argument(
        "--import", action="append", metavar="FILE", help="first run a Python file that registers things of your own"
    )
    return parser
