"""The sizes at which the suites can be run. No torch here.

`paper` trains what the paper trained. `mini` keeps each comparison (the same families under the same protocol) and
shrinks the protocol: scale by scale a wider miniature, two or three times the steps where the paper trains longer,
contexts of 256 and 512 at the same number of tokens for 512 and 1,024.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from scse.config import protocol
from scse.errors import checked_choice
from scse.suites.suite import Preset, Settings

MINI_WINDOWS = 512
_MINI = protocol("mini")
_WIDER: dict[str, Settings] = {
    "50m": {"width": 192, "heads": 6, "ff_width": 768},
    "96m": {"width": 256, "heads": 8, "ff_width": 1024},
    "137m": {"width": 320, "heads": 10, "ff_width": 1280},
}
MINIATURES: dict[str, Settings] = {
    "wikitext-2": _MINI,
    "wikitext-103": _MINI,
    "openwebtext": _MINI,
    "c4": _MINI,
    "wikitext-103-50m": {**_MINI, **_WIDER["50m"]},
    "wikitext-103-96m": {**_MINI, **_WIDER["96m"]},
    "wikitext-103-96m-10k": {**_MINI, **_WIDER["96m"], "steps": 800},
    "wikitext-103-ctx512": {**_MINI, "context": 256, "batch": 8},
    "wikitext-103-ctx1024": {**_MINI, "context": 512, "batch": 4},
    "c4-137m": {**_MINI, **_WIDER["137m"]},
    "c4-137m-50k": {**_MINI, **_WIDER["137m"], "steps": 1200},
}


def stand_ins(own: str | None) -> dict[str, str]:
    """Which other text `mini` has: LAMBADA itself, and for transfer the embedded corpus, unless it is the run's own.

    C4 has none: a second column of the same text would only look like a second finding.
    """
    return {"lambada": "lambada"} | ({} if own == "stdlib" else {"openwebtext": "stdlib"})


PRESETS = {
    "paper": Preset("paper"),
    "mini": Preset("mini", MINIATURES, "stdlib", MINI_WINDOWS, mini=True, elsewhere=stand_ins("stdlib")),
}


def find_preset(name: str, data: str | None = None, limit: int | None = None, steps: int | None = None) -> Preset:
    """A preset by name, on other text, on more or fewer windows, or with another number of steps."""
    preset = PRESETS[checked_choice("preset", name, PRESETS)]
    changes = {} if steps is None else {"steps": steps}
    chosen = replace(preset, changes=changes, data=data or preset.data, limit=limit or preset.limit)
    return replace(chosen, elsewhere=stand_ins(chosen.data)) if chosen.mini else chosen


def options(preset: Preset) -> list[str]:
    """The options of a command with which `find_preset` makes a preset of the one of its name."""
    plain = PRESETS[preset.name]
    own = {"data": preset.data, "steps": preset.changes.get("steps"), "limit": preset.limit}
    usual = {"data": plain.data, "steps": None, "limit": plain.limit}
    return [f"--{name} {shlex.quote(str(value))}" for name, value in own.items() if value != usual[name]]
