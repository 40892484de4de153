"""A family and a suite in a file of the user's, through every command, from the command line alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import forked
from runs import write_corpus
from scse import registry
from scse.errors import UserError
from scse.evaluation.rules import RULES
from scse.registry import Registry, import_guest, import_installed_guests, require_guests

GUEST, SUITE = (Path(__file__).with_name(name) for name in ("cooling.py", "cooling_suite.py"))
SMALL = ["--set", "width=16", "--set", "heads=2", "--set", "ff_width=16", "--set", "context=16", "--set", "batch=2"]


def scse(*arguments, code=0):
    done = forked.scse(arguments)
    assert done.returncode == code, done.stderr + done.stdout
    return done


def test_a_family_of_ones_own_goes_through_every_command(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    run, cache = tmp_path / "run", ["--cache-dir", tmp_path / "cache"]
    made = [
        "--family",
        "cooled",
        "--data",
        corpus,
        "--vocab",
        300,
        "--steps",
        2,
        *SMALL,
        "--out",
        run,
        *cache,
        "--quiet",
    ]
    guest = ["--import", GUEST]
    scse("train", *made, *guest)
    stored = json.loads((run / "config.json").read_text())["train"]
    assert list(stored["guests"]) == ["cooling.py"]

    rows = json.loads(scse("eval", run, "--depths", "2", "--json", "--quiet", *cache, *guest).stdout)
    assert rows[0]["depth"] == 2
    assert json.loads(scse("diagnose", run, "--steps", 2, "--batch", 2, "--json", "--quiet", *cache, *guest).stdout)
    exported = tmp_path / "exported"
    scse("export", run, exported, "--quiet", *cache, *guest)
    assert (exported / "guest_cooling.py").is_file()
    listed = json.loads(scse("families", "--json", *guest).stdout)
    assert listed[-1]["family"] == "cooled"
    assert listed[-1]["zero"] == "raw", "what it claims is read off its recurrence"

    said = scse("eval", run, "--depths", "2", "--quiet", *cache, code=2).stderr
    assert said.strip().endswith("needs 'cooling.py', which is not imported; add: --import cooling.py")


def test_a_suite_of_ones_own_is_run_reported_and_found_done(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    how = ["--preset", "mini", "--data", corpus, "--steps", 2, "--limit", 2, "--import", GUEST, "--import", SUITE]
    where = ["--runs", tmp_path / "runs", "--cache-dir", tmp_path / "cache"]
    found = json.loads(scse("suite", "run", "cooling", *how, *where, "--quiet", "--json").stdout)
    assert found["done"] == found["runs"] == 2
    again = json.loads(scse("suite", "plan", "cooling", *how, *where, "--json").stdout)
    assert again["total"]["flops"] == 0, "a guest's records are recognised as its own"
    scse("report", tmp_path / "runs", *how, "--suites", "cooling", "--out", tmp_path / "report")
    assert "SCSE, cooled" in (tmp_path / "report" / "index.html").read_text()


def test_a_problem_a_rule_a_sampler_and_a_term_of_ones_own(tmp_path):
    guest, run = ["--import", Path(__file__).with_name("many_things.py")], tmp_path / "run"
    size = [part for name in ("width=8", "heads=1", "ff_width=8", "batch=2", "largest=3") for part in ("--set", name)]
    made = ["--protocol", "countdown", "--steps", 2, *size, "--depths", "odd:2", "--objective", "last+0.01*size"]
    scse("train", *made, "--out", run, "--quiet", *guest)
    stored = json.loads((run / "config.json").read_text())["train"]
    assert list(stored["guests"]) == ["many_things.py"]
    assert (stored["corpus"], stored["problem"], stored["depths"]) == ("countdown", {"largest": 3}, "odd")
    metrics = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert {row["loops"] for row in metrics if "loops" in row} <= {1, 3}
    rows = json.loads(scse("eval", run, "--depths", "1,3", "--json", "--quiet", *guest).stdout)
    assert {row["difficulty"] for row in rows} == {3, "all"}
    stopped = scse("adaptive", run, "--rule", "always", "--budgets", 1, "--ceiling", 3, "--json", "--quiet", *guest)
    assert {row["mean_depth"] for row in json.loads(stopped.stdout)} == {1}
    child = tmp_path / "child"
    scse("train", "--from", run, "--steps", 1, "--out", child, "--quiet", *guest)
    assert json.loads((child / "config.json").read_text())["train"]["guests"] == stored["guests"]
    for command in (["train", *made, "--out", run], ["eval", run]):
        said = scse(*command, "--quiet", code=2).stderr
        assert "unknown" in said or said.strip().endswith("add: --import many_things.py")


def test_a_term_of_ones_own_in_a_sweep_is_found_again(tmp_path):
    guest = ["--import", Path(__file__).with_name("many_things.py"), "--out", tmp_path / "sweep", "--quiet", "--json"]
    small = [
        part
        for name in ("nodes=4", "hops=2", "batch=2", "width=8", "heads=1", "ff_width=8")
        for part in ("--set", name)
    ]
    grid = ["--protocol", "pointer-chase", "--vary", "objective=last,last+0.001*size", "--seeds", "0", *small]
    for _ in range(2):
        done = scse("sweep", *grid, "--steps", 2, "--limit", 4, "--depths", "1", *guest)
        assert len(json.loads(done.stdout)["rows"]) == 2


def test_a_corpus_of_ones_own(tmp_path):
    guest, run = ["--import", Path(__file__).with_name("sayings.py")], tmp_path / "run"
    cache = ["--cache-dir", tmp_path / "cache", "--quiet"]
    made = ["--family", "scse", "--data", "sayings", "--vocab", 300, "--steps", 2, *SMALL, "--out", run, *cache]
    scse("train", *made, *guest)
    assert list(json.loads((run / "config.json").read_text())["train"]["guests"]) == ["sayings.py"]
    assert json.loads(scse("eval", run, "--depths", "2", "--json", *cache, *guest).stdout)[0]["depth"] == 2
    assert "sayings" in [row["name"] for row in json.loads(scse("data", "list", "--json", *guest).stdout)]
    said = scse("eval", run, *cache, code=2).stderr
    assert said.strip().endswith("needs 'sayings.py', which is not imported; add: --import sayings.py")


def test_a_task_of_ones_own_is_a_column_of_a_suite(tmp_path):
    corpus, table = write_corpus(tmp_path / "corpus"), tmp_path / "table.py"
    table.write_text(
        "from scse import Arm, Column, Suite, register\n"
        "arm = Arm('scse', 'scse', 'mini', 'SCSE', seeds=(0,))\n"
        "register(Suite('sizes', 'Sizes', (arm,), (Column('n', 'weights', 'count', lower=None),)))\n"
    )
    things = Path(__file__).with_name("many_things.py")
    how = ["--preset", "mini", "--data", corpus, "--steps", 2, "--limit", 2, "--import", things, "--import", table]
    where = ["--runs", tmp_path / "runs", "--cache-dir", tmp_path / "cache"]
    found = json.loads(scse("suite", "run", "sizes", *how, *where, "--quiet", "--json").stdout)
    assert found["done"] == found["runs"] == 1
    assert json.loads(scse("suite", "plan", "sizes", *how, *where, "--json").stdout)["total"]["flops"] == 0


def test_what_is_none_of_the_kinds_is_not_registered():
    with pytest.raises(UserError, match="none of the kinds"):
        registry.register("a name")


def test_the_laws_hold_for_it_and_name_what_is_broken(tmp_path):
    rows = json.loads(scse("check", "cooled", "--import", GUEST, "--json").stdout)
    assert all(row["holds"] for row in rows)
    broken = tmp_path / "broken.py"
    text = GUEST.read_text().replace('"cooled"', '"looking-ahead"')
    text = text.replace("gain=FixedScale(step_scale)", "gain=Ahead(step_scale)")
    ahead = "class Ahead(FixedScale):\n    def forward(self, z, u):\n        return self.scale * u.flip(1)\n"
    broken.write_text(text.replace("def cooled", f"{ahead}\n\ndef cooled", 1))
    said = scse("check", "looking-ahead", "--import", broken, code=1).stderr
    assert "causality: a change at position" in said


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("import nothing_of_this_name", "ModuleNotFoundError"), ("1 +", "SyntaxError")],
)
def test_a_file_that_cannot_be_imported_is_one_line(tmp_path, content, message):
    path = tmp_path / "guest.py"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message):
        import_guest(path)


def test_a_registry_knows_who_brought_what(tmp_path, monkeypatch):
    class Thing:
        name = "mine"

    table = Registry("thing", ())
    monkeypatch.setitem(sys.modules, "a_table_of_the_test", type(sys)("a_table_of_the_test"))
    sys.modules["a_table_of_the_test"].table, sys.modules["a_table_of_the_test"].Thing = table, Thing
    path = tmp_path / "brings_a_thing.py"
    path.write_text("from a_table_of_the_test import table, Thing\ntable.register(Thing())\n")
    guest = import_guest(path)
    assert table.origin("mine") == guest
    assert import_guest(path) == guest, "the same file twice is once"
    with pytest.raises(UserError, match="already a thing 'mine'"):
        table.register(Thing())
    other = tmp_path / "elsewhere" / "brings_a_thing.py"
    other.parent.mkdir()
    other.write_text("1")
    with pytest.raises(UserError, match=r"two different files are called brings_a_thing\.py"):
        import_guest(other)


def test_an_installed_package_announces_itself(tmp_path, monkeypatch):
    """Under the group `scse.guests`: a module that registers when it is imported, or a function that does."""
    about = tmp_path / "guest_package-2.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: guest-package\nVersion: 2.1\n")
    entries = "[scse.guests]\nguest-package = guest_package:register\nmore = guest_package:more\n"
    (about / "entry_points.txt").write_text(entries)
    (tmp_path / "guest_package.py").write_text(
        "import scse\n"
        "from scse.evaluation.rules import UpdateNorm\n"
        "class Brought(UpdateNorm):\n    name = 'brought'\n"
        "def register():\n    scse.register(Brought())\n"
        "class Another(UpdateNorm):\n    name = 'another'\n"
        "def more():\n    scse.register(Another())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for table, contents in ((registry, "_present"), (RULES, "_items"), (registry, "_brought")):
        monkeypatch.setattr(table, contents, dict(getattr(table, contents)))
    import_installed_guests()
    import_installed_guests()
    assert RULES.origin("brought") == RULES.origin("another") == registry.Guest("guest-package", "2.1")
    assert require_guests({"guest-package": "2.1"}, "a run") == []
    assert len(require_guests({"guest-package": "2.0"}, "a run")) == 1
    with pytest.raises(UserError, match="pip install another-package"):
        require_guests({"another-package": "1"}, "a run")
    (about / "entry_points.txt").write_text("[scse.guests]\nother = guest_package:not_there\n")
    monkeypatch.setattr(registry, "_present", {})
    with pytest.raises(UserError, match="the installed guest 'guest-package' fails: AttributeError"):
        import_installed_guests()
