"""Our modules as the flat folder of relative imports that `trust_remote_code=True` can load without this package."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

from scse.families import FAMILIES

# module -> the file `auto_map` points to; every other module becomes scse_<path>.py
ENTRIES = {"scse.hf.configuration": "configuration_scse", "scse.hf.modeling": "modeling_scse"}
AUTO_MAP = {
    "AutoConfig": "configuration_scse.ScseConfig",
    "AutoModelForCausalLM": "modeling_scse.ScseForCausalLM",
}
_IMPORT = re.compile(r"^(\s*)from (scse(?:\.\w+)+) import ", flags=re.MULTILINE)
_FROM_PACKAGE = re.compile(r"^from scse import ([^\n(]+)$", flags=re.MULTILINE)


def remote_files(family: str = "") -> dict[str, str]:
    """{file name: source} of the entries and all they import of ours, with imports made relative.

    A family that a guest brought comes with the guest's file, which the model's entry imports.
    """
    files: dict[str, str] = {}
    waiting = [(module, _source(module)) for module in ENTRIES]
    guest = FAMILIES.origin(family) if family else None
    if guest is not None and guest.path:
        name = f"guest_{Path(guest.path).stem}"
        waiting.append((name, _FROM_PACKAGE.sub(_by_homes, Path(guest.path).read_text("utf-8"))))
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


def _by_homes(match: re.Match[str]) -> str:
    """'from scse import A, B' as imports from the modules that A and B live in."""
    homes = importlib.import_module("scse")._HOMES
    return "\n".join(f"from {homes[name.strip()]} import {name.strip()}" for name in match.group(1).split(","))


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
