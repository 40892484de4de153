"""Our modules as the flat folder of relative imports that `trust_remote_code=True` can load without this package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from pathlib import Path

from scse.errors import UserError, unknown_name
from scse.families import FAMILIES

# module -> the file `auto_map` points to; every other module becomes scse_<path>.py
ENTRIES = {"scse.hf.configuration": "configuration_scse", "scse.hf.modeling": "modeling_scse"}
AUTO_MAP = {
    "AutoConfig": "configuration_scse.ScseConfig",
    "AutoModelForCausalLM": "modeling_scse.ScseForCausalLM",
}
PACKAGE = __name__.partition(".")[0]
_IMPORT = re.compile(r"^(\s*)from (scse(?:\.\w+)+) import ", flags=re.MULTILINE)


def remote_files(family: str = "") -> dict[str, str]:
    """{file name: source} of the entries and all they import of ours, with imports made relative.

    A family that a guest brought comes with the guest's file, which the model's entry imports.
    """
    files: dict[str, str] = {}
    waiting = [(module, _source(module)) for module in ENTRIES]
    guest = FAMILIES.origin(family) if family else None
    if guest is not None and guest.path:
        name = f"guest_{Path(guest.path).stem}"
        waiting.append((name, by_homes(Path(guest.path))))
    while waiting:
        module, source = waiting.pop()
        file = f"{_flat(module)}.py"
        if file in files:
            continue
        waiting += [(match.group(2), _source(match.group(2))) for match in _IMPORT.finditer(source)]
        files[file] = _IMPORT.sub(lambda match: f"{match.group(1)}from .{_flat(match.group(2))} import ", source)
    if guest is not None and guest.path:
        files[f"{ENTRIES['scse.hf.modeling']}.py"] += (
            f"\nfrom .{name} import __name__ as _guest  # registers its family\n"
        )
    return files


def by_homes(path: Path) -> str:
    """A guest's file with every 'from scse import A' as an import from the module that A lives in."""
    homes = importlib.import_module("scse")._HOMES
    source = path.read_text("utf-8")
    lines = source.split("\n")
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in sorted(nodes, key=lambda node: -node.lineno):
        if isinstance(node, ast.Import) and any(alias.name.partition(".")[0] == PACKAGE for alias in node.names):
            where = f"{path}:{node.lineno}"
            raise UserError(f"{where}: an export can carry 'from scse import …' along, but not 'import scse'")
        if not isinstance(node, ast.ImportFrom) or node.module != PACKAGE:
            continue
        if unknown := [alias.name for alias in node.names if alias.name not in homes]:
            raise unknown_name("name of scse", unknown[0], homes)
        indent = " " * node.col_offset
        imports = [f"{indent}from {homes[alias.name]} import {ast.unparse(alias)}" for alias in node.names]
        lines[node.lineno - 1 : node.end_lineno] = imports
    return "\n".join(lines)


def write_code(folder: Path, family: str) -> None:
    """Put the modules into a folder whose configuration names them in `AUTO_MAP`."""
    for name, source in remote_files(family).items():
        (folder / name).write_text(source, "utf-8")


def _flat(module: str) -> str:
    return ENTRIES.get(module, module.replace(".", "_"))


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text("utf-8")
