"""Of what size a suite's runs are and on what text, in words: the paper's, and those of a preset. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from scse.config import assemble, protocol
from scse.data import DataConfig
from scse.suites.suite import Arm, Preset, Suite
from scse.tasks.base import short_name

# As the paper writes them.
CORPORA = {"wikitext-2": "WikiText-2", "wikitext-103": "WikiText-103", "openwebtext": "OpenWebText", "c4": "English C4"}
SIZES = {"22m": "22M", "50m": "50M", "96m": "95.6M", "137m": "136.5M"}

Facts = Mapping[str, object]


def setting(suite: Suite, preset: Preset) -> str:
    """'stdlib, width 128, context 128, 400 steps; in the paper WikiText-103, 22M'"""
    if not suite.paper:
        return ours(suite, preset)
    if _as_in_the_paper(suite.arms, preset):
        return in_the_paper(suite)
    return f"{ours(suite, preset)}; in the paper {in_the_paper(suite)}"


def in_the_paper(suite: Suite) -> str:
    """'WikiText-103, 22M, 50M and 95.6M'"""
    settings = [protocol(name) for name in _protocols(suite.arms)]
    corpora = (str(chosen.get("data", DataConfig.corpus)) for chosen in settings)
    return f"{_listed(CORPORA.get(name, name) for name in corpora)}, {_listed(map(_size, settings))}"


def ours(suite: Suite, preset: Preset) -> str:
    """'stdlib, width 128 and 192, context 128, 400 steps'"""
    found = [_facts(arm, preset) for arm in _protocols(suite.arms).values()]
    columns = {name: _listed(str(facts[name]) for facts in found) for name in found[0]}
    return f"{columns['data']}, width {columns['width']}, context {columns['context']}, {columns['steps']} steps"


def group_heading(suite: Suite, preset: Preset, group: str) -> str:
    """A group of the paper's table, followed by what stands for it here if it names a size that is another here.

    '50M' under the mini preset is '50M in the paper, width 192 here'.
    """
    arms = [arm for arm in suite.arms if arm.group == group]
    protocols = _protocols(suite.arms)
    own = _protocols(arms)
    if not suite.paper or not group or len(own) > 1 or _as_in_the_paper(arms, preset):
        return group
    if len(protocols) == 1 and _size(protocol(next(iter(own)))) not in group:
        return group
    facts = _facts(next(iter(own.values())), preset)
    others = [_facts(arm, preset) for arm in protocols.values()]
    telling = [name for name in ("width", "context", "steps") if any(facts[name] != other[name] for other in others)]
    here = ", ".join(_WORDS[name].format(facts[name]) for name in telling or ["width"])
    return f"{group} in the paper, {here} here"


_WORDS = {"width": "width {}", "context": "context {}", "steps": "{} steps"}


def _protocols(arms: Iterable[Arm]) -> dict[str, Arm]:
    """Each protocol with its first arm, without what the arm itself changes; what all change in miniature stays."""
    found: dict[str, Arm] = {}
    for arm in arms:
        first = found.get(arm.protocol, arm)
        common = {name: value for name, value in first.mini.items() if arm.mini.get(name) == value}
        found[arm.protocol] = replace(first, settings={}, mini=common)
    return found


def _size(settings: Facts) -> str:
    scale = str(settings["scale"])
    return SIZES.get(scale, scale)


def _as_in_the_paper(arms: Iterable[Arm], preset: Preset) -> bool:
    return all(preset.settings(arm) == protocol(name) for name, arm in _protocols(arms).items())


def _facts(arm: Arm, preset: Preset) -> Facts:
    settings = preset.settings(arm)
    shape = assemble(arm.family, settings).model.shape
    return {
        "data": short_name(str(settings.get("data", DataConfig.corpus))),
        "width": shape.width,
        "context": shape.context,
        "steps": f"{int(str(settings['steps'])):,}",
    }


def _listed(words: Iterable[str]) -> str:
    """'a, b and c', each once."""
    *first, last = dict.fromkeys(words)
    return f"{', '.join(first)} and {last}" if first else last
