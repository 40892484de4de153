"""What the commands share: a parser whose errors are one line, and answers as a table or JSON."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from scse.cli.tables import print_table
from scse.cli.text import wrapped
from scse.compiling import COMPILING, OFF, ON
from scse.errors import UserError, unknown_name
from scse.precision import EXACT, INFERENCE

if TYPE_CHECKING:
    from scse.processes import World
    from scse.runs import Run
    from scse.tasks import Selection

Arguments = argparse.Namespace


class HelpFormatter(argparse.HelpFormatter):
    """Paragraphs and indented entries at the terminal's width, and every default."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for paragraph in text.strip("\n").split("\n\n"):
            block = paragraph.splitlines()
            listed = all(line.startswith(" ") for line in block)
            lines += [
                "",
                *(line for entry in (block if listed else [" ".join(block)]) for line in wrapped(entry, width)),
            ]
        return "\n".join(indent + line for line in lines[1:])

    def _split_lines(self, text: str, width: int) -> list[str]:
        return wrapped(" ".join(text.split()), width)

    def _get_help_string(self, action: argparse.Action) -> str:
        """The default is added where the text does not speak of it, and an option has one that is worth saying."""
        said = action.help or ""
        silent = action.default is None or action.default is False or action.default in ("", [], argparse.SUPPRESS)
        if silent or not action.option_strings or re.search(r"\bdefault\b", said):
            return said
        value = ",".join(map(str, action.default)) if isinstance(action.default, list | tuple) else action.default
        return f"{said} (default {value})"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UserError` instead of printing its usage."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **kwargs)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} ('{self.prog} --help' explains the options)")

    def parse(self, arguments: Sequence[str]) -> Arguments:
        known, unknown = self.parse_known_args(self._spelled_out(arguments))
        if unknown:
            valid = [name for name in self._option_string_actions if name.startswith("--")]
            name = unknown[0].split("=")[0]
            raise unknown_name("argument", name, valid, hint=f"'{self.prog} --help' explains the options")
        return known

    def _spelled_out(self, arguments: Sequence[str]) -> list[str]:
        """An option that may stand alone takes the next word only if that is one of its answers: it may be a run."""
        alone = {name: one for name, one in self._option_string_actions.items() if one.nargs == "?"}
        after = [*arguments[1:], ""]
        return [
            f"{word}={alone[word].const}" if word in alone and following not in (alone[word].choices or ()) else word
            for word, following in zip(arguments, after, strict=False)
        ]


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on stdout")


def add_family(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument("--family", default=default, metavar="F", help="a name of 'scse families'")


def add_scale(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    parser.add_argument("--scale", default=default, metavar="S", help="mini, 22m, 50m, 96m, 137m, 4x320 or 6x288")


def add_rule(parser: argparse.ArgumentParser) -> None:
    from scse.config.adaptive import AdaptiveSettings

    parser.add_argument(
        "--rule",
        default=AdaptiveSettings.rule,
        metavar="R",
        help="exit rule: update (the paper's), relative, kl, margin, lookahead, or gate (see train-exit)",
    )


def add_seed(parser: argparse.ArgumentParser, about: str, default: int | None = 0) -> None:
    """A seed that every generator takes."""
    stated = "" if default is None else f" (default {default})"
    parser.add_argument("--seed", type=_seed, default=default, metavar="N", help=f"{about}{stated}")


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 2^63 - 1, got '{text}'")
    return int(text)


def add_data_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", metavar="DIR", help="where corpora lie (default: SCSE_DATA)")
    parser.add_argument("--cache-dir", metavar="DIR", help="where tokens are cached (default: SCSE_CACHE)")


DEPTH_TRAINING = ("depths", "backprop", "objective")


def add_depth_training(parser: argparse.ArgumentParser) -> None:
    """How deep steps go and what they minimise, as settings of a run; None where nothing is said."""
    parser.add_argument(
        "--depths",
        metavar="D",
        help="uniform:8 (the paper's), poisson:8, lognormal-poisson:8, log-uniform:32, fixed:8, curriculum:8:1000",
    )
    parser.add_argument("--backprop", type=int, metavar="K", help="gradients through the last K loops (default: all)")
    parser.add_argument("--objective", metavar="O", help="what is minimised, such as last+0.05*fixed-point")


def add_checkpoints(parser: argparse.ArgumentParser) -> None:
    """How often a run is saved."""
    from scse.config import RunOptions

    steps, minutes = RunOptions.checkpoint_every, RunOptions.checkpoint_minutes
    parser.add_argument("--checkpoint-every", type=int, default=steps, metavar="N", help="save every N steps")
    parser.add_argument("--checkpoint-minutes", type=float, default=minutes, metavar="M", help="and every M minutes")


def add_evaluation(parser: argparse.ArgumentParser, unit: str = "windows", data: str | None = None) -> None:
    """What every evaluation on text can be told."""
    add_batch(parser, unit)
    parser.add_argument("--limit", type=int, metavar="N", help=f"only the first N {unit}")
    add_text(parser, data)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Where to compute, for every command that does."""
    parser.add_argument(
        "--device",
        default="auto",
        metavar="D",
        help="auto (default: an accelerator if there is one), cpu, cuda, cuda:N, mps",
    )


def add_precision(parser: argparse.ArgumentParser, choices: Sequence[str] = INFERENCE) -> None:
    """Where and how to compute, for every command that infers."""
    add_device(parser)
    parser.add_argument("--precision", default=EXACT, metavar="P", help=f"of the matrix products: {', '.join(choices)}")


def add_compile(parser: argparse.ArgumentParser) -> None:
    """For the commands that spend their time in the loops."""
    parser.add_argument(
        "--compile",
        nargs="?",
        choices=COMPILING,
        const=ON,
        default=OFF,
        metavar="C",
        help="compile the step first: on (as --compile alone), off, or auto, where it is faster (default off); "
        "needs a C++ compiler on a CPU",
    )


def open_chosen(
    folder: str | Path, args: Arguments, float64: bool = False, tokens: int = 0, here: World | None = None
) -> Run:
    """A run, opened as the options say. `float64`: such numbers are needed, which not every device has. `tokens` are
    those to be decoded under a cache, as far as that is known. `here` is one of the processes that open it together.
    """
    from scse.devices import compiles, resolve_device
    from scse.processes import ALONE
    from scse.runs import open_run

    device = resolve_device(args.device, float64) if here is None else here.device
    compiled = compiles(getattr(args, "compile", OFF), device, tokens)
    precision = getattr(args, "precision", EXACT)
    return open_run(folder, device, precision, float64=float64, compiled=compiled, here=here or ALONE)


@contextmanager
def opened_together(args: Arguments) -> Iterator[tuple[Run, Selection]]:
    """A run and what is read of it, for an evaluation that all processes of `torchrun` make together; or one alone."""
    from scse.processes import world

    with world(args.device) as here:
        selection = selection_of(args)
        yield open_chosen(args.run, args, here=here), replace(selection, show=selection.show and here.leads)


def add_batch(parser: argparse.ArgumentParser, unit: str = "windows") -> None:
    from scse.config.use import BATCH

    parser.add_argument("--batch", type=int, default=BATCH, metavar="N", help=f"{unit} at a time")


def add_text(parser: argparse.ArgumentParser, data: str | None = None) -> None:
    """Which text to look at, and how to answer."""
    from scse.tasks.base import Selection

    default = data or "the run's own"
    parser.add_argument("--data", default=data, metavar="D", help=f"a corpus by name or path (default: {default})")
    parser.add_argument("--split", default=Selection.split, metavar="S", help="the part of it")
    parser.add_argument("--tag", default="", metavar="TEXT", help="a label kept in the record")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_data_folders(parser)
    add_json(parser)


def selection_of(args: Arguments) -> Selection:
    """What the options of `add_evaluation` say; a command without --limit leaves it open."""
    from scse.tasks import Selection

    folders = {"data_dir": args.data_dir, "cache_dir": args.cache_dir}
    limit, batch = getattr(args, "limit", Selection.limit), getattr(args, "batch", Selection.batch)
    return Selection(args.data, args.split, limit, batch, args.tag, show=not args.quiet, **folders)


def settings(pairs: Sequence[str], option: str = "--set") -> dict[str, object]:
    """['lr=1e-3', 'context=256'] -> {'lr': '1e-3', 'context': '256'}"""
    parsed: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals):
            raise UserError(f"{option} takes name=value, got '{pair}'")
        parsed[name] = value
    return parsed


def said_once(named: Mapping[str, object], by_name: Mapping[str, object]) -> None:
    """Refuse what an option and --set both say; options that were not given are None."""
    if twice := [name for name in by_name if named.get(name) is not None]:
        raise UserError(f"--{twice[0]} and --set {twice[0]}={by_name[twice[0]]} both say it; keep one of them")


def positive_ints(text: str) -> list[int]:
    """'4,8,48' -> [4, 8, 48]"""
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, got '{text}'") from None
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {min(values)}")
    return values


def seed_list(text: str) -> list[int]:
    """'0,1,2' -> [0, 1, 2]"""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, got '{text}'")
    return [int(part) for part in parts]


def require_positive(args: Arguments, *names: str) -> None:
    """Options that are given must be at least 1."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, got {value}")


def require_picture(option: str, path: str | None) -> None:
    """A picture that is asked for must have a name we can draw to."""
    if path is not None and not path.endswith((".png", ".svg")):
        raise UserError(f"{option} must end in .png or .svg, got '{path}'")


def print_json(data: object) -> None:
    print(json.dumps(data, ensure_ascii=False))


def print_rows(
    rows: Sequence[Mapping[str, object]],
    as_json: bool,
    title: str = "",
    spare: Sequence[str] = (),
    elsewhere: str = "--json has all",
) -> None:
    """Rows with the same keys, as a JSON array or as a table for people; `scse.cli.tables` says how it fits."""
    if as_json:
        print_json(list(rows))
    else:
        print_table(rows, title, spare, elsewhere)
