"""What may import what goes one way, README says so truly, and a family's name has one home."""

from __future__ import annotations

import ast
import re

import pytest

from layers import LAYERS, ROOT, WITHOUT_TORCH, circle, imported, module_imports, sources, unit, unit_imports, upward
from scse.families import FAMILIES

FILES = sources()


@pytest.fixture(scope="module")
def edges():
    return module_imports(FILES)


def test_everything_has_one_place_in_the_table():
    listed = [name for names in LAYERS.values() for name in names]
    assert sorted(listed) == sorted({unit(name) for name in FILES})


def test_imports_go_downward(edges):
    assert upward(edges) == []


def test_no_imports_in_a_circle(edges):
    assert circle(unit_imports(edges)) == []
    assert circle(edges) == []


def test_descriptions_know_nothing_of_torch():
    for name, source in FILES.items():
        if unit(name) in LAYERS[WITHOUT_TORCH]:
            assert not [module for module, _ in imported(source) if module.partition(".")[0] == "torch"], name


@pytest.mark.parametrize(("module", "line"), [
    ("errors", "from scse.files import expand"),
    ("nn.block", "def f():\n    from scse.model import LoopedLM"),
    ("runs.folder", "import scse.training.trainer"),
    ("tasks.base", "from scse import suites"),
    ("data.cache", "from scse import load_model"),
    ("nn.loss", "importlib.import_module('scse.cli.train')"),
])  # fmt: skip
def test_a_wrong_import_would_be_seen(module, line):
    edges = module_imports({**FILES, module: f"{FILES[module]}\n{line}\n"})
    assert upward(edges) or circle(unit_imports(edges))


def test_what_only_a_type_checker_reads_is_no_import():
    source = "if TYPE_CHECKING:\n    from scse.cli import main\nelse:\n    import torch\n"
    assert imported(source) == [("torch", "")]


def test_paths_of_the_command_line_know_the_home_folder():
    """What a user wrote goes through `expand`, because a shell leaves ~ alone behind an equals sign."""
    assert [name for name, source in FILES.items() if unit(name) == "cli" and "Path(args." in source] == []


def test_readme_shows_these_layers():
    text = (ROOT / "README.md").read_text("utf-8")
    block = re.search(r"What may import what[^\n]*\n(?:[^\n]+\n)*\n((?:    [^\n]+\n)+)", text)
    assert block is not None
    shown = dict(line.split(maxsplit=1) for line in block[1].splitlines())
    public = {layer: [name for name in names if not name.startswith("__")] for layer, names in LAYERS.items()}
    assert {layer: names.split(", ") for layer, names in shown.items()} == public
    assert list(shown) == list(LAYERS)


# Files that may name families: their table, the declarations of suites, and the demonstration, which declares its own.
DECLARATIONS = ("families", "suites", "demo", "demo_chase")
# The package is called like one of its families. Where the package is meant, its name stands in one of these.
PACKAGE_NAME = re.compile(
    r"logging\.getLogger\(|importlib\.import_module\('scse'\)|"
    r"version\('scse'\)|register_model\('scse'\)|model_type = |facts\[|\('scse', 'torch', "
)


def families_named(source: str) -> list[str]:
    """The string literals that are a family's name, the package's own name aside."""
    tree = ast.parse(source)
    parents = {child: parent for parent in ast.walk(tree) for child in ast.iter_child_nodes(parent)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and (node.value in FAMILIES or re.fullmatch(r"unshared-\d+", node.value))
        and not (node.value == "scse" and PACKAGE_NAME.match(ast.unparse(parents[node])))
    ]


def test_no_family_is_named_outside_the_table():
    named = {name: families_named(source) for name, source in FILES.items() if unit(name) not in DECLARATIONS}
    assert {name: families for name, families in named.items() if families} == {}


def test_a_name_would_be_seen():
    named = families_named('model_config("scse"); find("leak"); x = "unshared-6"')
    assert sorted(named) == ["leak", "scse", "unshared-6"]
    assert families_named('"""The scse family."""\nlog = logging.getLogger("scse")') == []


def quick_files() -> list[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8").replace("\\\n", " ")
    return re.search(r"^QUICK := (.*)$", makefile, re.MULTILINE)[1].split()


@pytest.mark.parametrize("path", quick_files())
def test_the_quick_tests_start_no_process(path):
    assert not {"subprocess", "runs", "chromium"} & {module for module, _ in imported((ROOT / path).read_text("utf-8"))}
