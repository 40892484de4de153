"""The documentation's code runs, and what it names exists."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from scse import FAMILIES, LoopedLM, load_model, model_config, register, save_model
from scse.cli import COMMANDS, command_parser
from scse.config import PROTOCOLS, SCALES, assemble
from scse.config.depths import SAMPLERS
from scse.data import CORPORA
from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.problems import PROBLEMS, make_problem
from scse.suites import SUITES
from scse.tasks import TASKS
from scse.training.objectives import TERMS
from tinymodels import some_ids

ROOT = Path(__file__).parent.parent
DOCS = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md", *(ROOT / "docs").glob("*.md")]
)


def python_blocks(path: Path) -> str:
    return "\n".join(re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL))


def test_adding_a_family_works_as_described(monkeypatch, tmp_path):
    monkeypatch.setattr(FAMILIES, "_items", dict(FAMILIES._items))
    space: dict = {}
    exec(python_blocks(ROOT / "docs" / "adding-a-family.md"), space)
    assert space["logits"].shape == (2, 16, 4096)

    model = LoopedLM(model_config("fading-adapter", "mini")).eval()
    assert model.recurrence.step_dependent
    ids = some_ids(vocabulary=4096)
    save_model(model, tmp_path)
    assert torch.equal(load_model(tmp_path)(ids, 5), model(ids, 5))
    steady = LoopedLM(model_config("fading-adapter", "mini", {"fade": 1.0})).eval()
    plain = LoopedLM(model_config("tuned-adapter", "mini")).eval()
    assert torch.equal(steady(ids, 5), plain(ids, 5)), "without fading it is the tuned adapter"
    with pytest.raises(UserError, match="already a family 'scse'"):
        register(FAMILIES.find("scse"))


def test_readme_code_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    space: dict = {}
    exec(python_blocks(ROOT / "README.md"), space)
    assert space["logits"].shape[-1] == 50_257


def test_things_of_your_own_are_registered_as_described(monkeypatch):
    tables = {CORPORA: "letters", SAMPLERS: "odd", TERMS: "size", RULES: "largest-change", TASKS: "state-norm"}
    for table in (*tables, SUITES):
        monkeypatch.setattr(table, "_items", dict(table._items))
    exec(python_blocks(ROOT / "docs" / "extending.md"), {})
    assert all(name in table for table, name in tables.items())
    assert [arm.family for arm in SUITES.find("norms").arms] == ["looped", "scse"]


def test_a_problem_of_your_own_works_as_described(monkeypatch):
    monkeypatch.setattr(PROBLEMS, "_items", dict(PROBLEMS._items))
    exec(python_blocks(ROOT / "docs" / "problems.md"), {})
    countdown = make_problem("countdown", {"largest": 6})
    examples = countdown.examples(0, "train", 0, 20)
    countdown.verify(examples)
    assert (countdown.answers(examples, 2) == np.maximum(0, examples.difficulty - 2)).all()


def test_the_tables_of_defaults_are_the_programs():
    text = (ROOT / "docs" / "training.md").read_text("utf-8")
    for name, shape in SCALES.items():
        sizes = (shape.width, shape.heads, shape.ff_width, shape.context, f"{shape.vocabulary:,}")
        assert "x" in name or f"| `{name}` | {' | '.join(map(str, sizes))} |" in text
    config = assemble("scse", {"steps": 1})
    (table,) = re.findall(r"\| option \| default \|(?:.*\n)+?\n", text)
    for cells in (line.strip("| ").split(" | ") for line in table.strip().splitlines()[2:]):
        for names, values in (cells[:2], cells[-2:]):
            stated = zip(re.findall(r"`(\w+)`", names), re.split(r"[,;] ", values), strict=True)
            for name, value in stated:
                wanted = config.seed if value == "the seed" else type(getattr(config, name))(value)
                assert getattr(config, name) == wanted, name


def shown_commands(path: Path) -> Iterator[str]:
    """What the documentation says to type after `scse`: in blocks whole lines, elsewhere what stands in back quotes."""
    text = re.sub(r"\\\n *", "", path.read_text(encoding="utf-8"))
    yield from re.findall(r"^ {4,}scse ([a-z].*)$", text, re.MULTILINE)
    yield from re.findall(r"`scse ([a-z][^`]*)`", text)


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_every_command_in_the_documentation_is_understood(path):
    for line in shown_commands(path):
        name, *words = shlex.split(line.replace("…", "..."), comments=True)
        if name == "COMMAND":
            continue
        options = command_parser(name)._option_string_actions
        for word in words:
            option = word.partition("=")[0]
            assert not word.startswith("--") or option in options, f"scse {line}"


def test_every_family_and_command_is_in_the_documentation():
    readme, equations = (ROOT / "README.md").read_text(), (ROOT / "docs" / "equations.md").read_text()
    for name in (family.name for family in FAMILIES):
        assert f"`{name}`" in readme + equations
    for command in COMMANDS:
        assert f"scse {command}" in readme
    training = (ROOT / "docs" / "training.md").read_text()
    for protocol in PROTOCOLS:
        # The table writes `wikitext-103`, `-50m`, … for the longer names.
        assert f"`{protocol}`" in training or f"`{protocol.removeprefix('wikitext-103')}`" in training


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_files_and_tests_named_in_the_documentation_exist(path):
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (path.parent / target).exists(), target
    source = "\n".join(p.read_text() for p in (ROOT / "tests").rglob("*.py"))
    for test in re.findall(r"`(test_\w+)`", text):
        assert f"def {test}(" in source, test
    for module in re.findall(r"`([a-z_]+/[a-z_/]+\.py|src/[a-z_/]+|tests/[a-z_/]+)`", text):
        assert any((home / module).exists() for home in (ROOT, ROOT / "src" / "scse")), module
    labels = {suite.label for suite in SUITES} - set(SUITES.names())
    assert labels.isdisjoint(re.findall(r"`([\w-]+)`", text)), "suites go by their own names"
