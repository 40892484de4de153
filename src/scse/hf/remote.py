"""Our modules as the flat folder of relative imports that `trust_remote_code=True` can load without this package."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

# module -> the file `auto_map` points to; every other module becomes scse_<path>.py
ENTRIES = {"scse.hf.configuration": "configuration_scse", "scse.hf.modeling": "modeling_scse"}
AUTO_MAP = {
    "AutoConfig": "configuration_scse.ScseConfig",
    "AutoModelForCausalLM": "modeling_scse.ScseForCausalLM",
}
_IMPORT = re.compile(r"^(\s*)from (scse(?:\.\w+)+) import ", flags=re.MULTILINE)


def remote_files() -> dict[str, str]:
    """{file name: source} of the entries and all they import of ours, with imports made relative."""
    files: dict[str, str] = {}
    waiting = list(ENTRIES)
    while waiting:
        module = waiting.pop()
        name = f"{_flat(module)}.py"
        if name in files:
            continue
        source = _source(module)
        waiting += [match.group(2) for match in _IMPORT.finditer(source)]
        files[name] = _IMPORT.sub(lambda match: f"{match.group(1)}from .{_flat(match.group(2))} import ", source)
    return files


def write_code(folder: Path) -> None:
    """Put the modules into a folder whose configuration names them in `AUTO_MAP`."""
    for name, source in remote_files().items():
        (folder / name).write_text(source, "utf-8")


def _flat(module: str) -> str:
    return ENTRIES.get(module, module.replace(".", "_"))


def _source(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text("utf-8")
