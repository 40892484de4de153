"""One report of the toy suites, written once for all tests that only look at it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import toys

from scse.records import Record
from scse.report.write import write_report
from scse.suites.presets import find_preset
from scse.suites.suite import Suite

NOBODY_RAN = replace(
    toys.ABLATIONS,
    name="toy-missing",
    title="A suite that nobody has run",
    arms=tuple(replace(arm, settings={"lr": 5e-4}) for arm in toys.ABLATIONS.arms),
)


@pytest.fixture(scope="session")
def shown() -> list[Suite]:
    return [*toys.SUITES.values(), NOBODY_RAN]


@pytest.fixture(scope="session")
def records() -> list[Record]:
    """Made once: records carry the time at which they were made."""
    return toys.every_record()


@pytest.fixture(scope="session")
def report(tmp_path_factory, shown, records) -> Path:
    out = tmp_path_factory.mktemp("report")
    write_report(shown, toys.MINI, records, out)
    return out


@pytest.fixture(scope="session")
def demo_report(tmp_path_factory) -> Path:
    """The demo's page, of numbers made up: many columns, one seed, and no values of the paper's."""
    from scse.demo import DEMO

    preset = find_preset("mini", "stdlib", 64, 320)
    out = tmp_path_factory.mktemp("demo")
    write_report([DEMO], preset, toys.demo_records(DEMO, preset), out)
    return out
