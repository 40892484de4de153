"""The layers of the package, top first, and the imports between its modules as they stand in the source."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from scse import _HOMES

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "scse"

# The package's own file is at the bottom: Python runs it first, and it loads the public names only when asked.
# A module or package may import what stands in its own row, in no circle, and in the rows below. Nothing else.
LAYERS = {
    "commands": ["cli", "__main__"],
    "products": ["api", "testing", "demo", "demo_chase", "report", "lens", "hf", "serve", "interchange", "bench"],
    "suites": ["suites"],
    "tasks": ["tasks"],
    "work": ["training", "evaluation", "diagnostics", "generation"],
    "storage": ["runs", "records"],
    "models": ["accounting", "persistence", "model", "trajectory", "recurrence", "nn"],
    "descriptions": ["flops", "planning", "config", "families", "catalogue", "data", "problems"],
    "ground": [
        *("registry", "files", "layout", "measure", "devices", "progress", "machine", "signals", "locks", "provenance"),
        *("errors", "precision", "compiling", "processes"),
        "__init__",
    ],
}
WITHOUT_TORCH = "descriptions"

Imports = dict[str, set[str]]


def sources(package: Path = PACKAGE) -> dict[str, str]:
    """{module below the package: its source}; the package's own file is called `__init__`."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return found


@cache
def imported(source: str) -> list[tuple[str, str]]:
    """(module, name) of all absolute imports, also inside functions, except those only a type checker reads."""
    found, waiting = [], [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
            found += [(node.module or "", alias.name) for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found += [(name.value, "") for name in node.args if isinstance(name, ast.Constant)]
        waiting += ast.iter_child_nodes(node)
    return found


def module_imports(files: dict[str, str], package: str = "scse") -> Imports:
    """{module: the modules of the package that it imports}; a public name counts as the module it comes from."""
    edges: Imports = {name: set() for name in files}
    for name, source in files.items():
        for module, item in imported(source):
            if module.partition(".")[0] != package:
                continue
            whole = f"{module}.{item}".removeprefix(f"{package}.").rstrip(".")
            if module == package:
                module = _HOMES.get(item, module)
            target = module.removeprefix(package).lstrip(".") or "__init__"
            edges[name].add(whole if whole in files else target)
    return edges


def unit(module: str) -> str:
    """What has a place in the table: a package, or a module beside the packages."""
    return module.partition(".")[0]


def unit_imports(edges: Imports) -> Imports:
    units: Imports = {unit(name): set() for name in edges}
    for name, targets in edges.items():
        units[unit(name)] |= {unit(target) for target in targets} - {unit(name)}
    return units


def upward(edges: Imports) -> list[str]:
    """The imports, module by module, that go to a higher layer."""
    rank = {name: number for number, names in enumerate(LAYERS.values()) for name in names}
    return sorted(
        f"{name} imports {target}"
        for name, targets in edges.items()
        for target in targets
        if rank[unit(target)] < rank[unit(name)]
    )


def circle(edges: Imports) -> list[str]:
    """Names that import one another in a circle, or nothing."""
    finished: set[str] = set()

    def follow(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name not in finished:
            for target in sorted(edges[name] - {name}):
                if found := follow(target, [*way, name]):
                    return found
            finished.add(name)
        return []

    return next((found for name in sorted(edges) if (found := follow(name, []))), [])
