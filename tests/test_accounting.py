"""Counts of the paper and of the design, exactly."""

from __future__ import annotations

import pytest

from scse import model_config
from scse.accounting import count_parameters, flop_proxy
from scse.config import SCALES
from scse.families import FAMILIES
from scse.flops import body_flops

COUNTS = {
    "22m": {"looped": 21_855_745, "adapter": 22_150_657, "step-adapter": 22_298_113, "scse": 22_003_200},
    "50m": {"looped": 48_724_993, "adapter": 49_904_641, "step-adapter": 50_494_465, "scse": 49_314_816},
    "96m": {"looped": 92_349_441, "adapter": 95_626_241, "step-adapter": 97_264_641, "scse": 93_987_840},
    "137m": {"looped": 130_916_865, "adapter": 136_454_657, "step-adapter": 139_223_553, "scse": 133_685_760},
    "4x320": {"unshared-4": 22_679_680},
    "6x288": {"unshared-6": 22_477_248},
}
CASES = [(scale, family, count) for scale, rows in COUNTS.items() for family, count in rows.items()]


@pytest.mark.parametrize(("scale", "family", "count"), [*CASES, ("22m", "unshared-8", 38_228_736)])
def test_parameter_counts(scale, family, count):
    assert count_parameters(model_config(family, scale)).active == count


def test_variants_add_exactly_their_own_parameters():
    def count(family):
        return count_parameters(model_config(family, "22m")).active

    d = SCALES["22m"].width
    assert count("tuned-adapter") == count("adapter") == count("leak") == count("sc-cond")
    assert count("sc-cond") == count("scse") + d * d + 1
    assert count("scalar-gate") == count("looped") + 1
    assert count("channel-gate") == count("looped") + d * d + d
    assert count("norm-reset") == count("looped")
    assert count("scse-random") == count("scse-embedding") == count("scse") - d * d
    assert count("film-adapter") == count("adapter") + 8 * 2 * d


def test_paper_counts_include_the_unused_conditioning_matrix():
    counts = count_parameters(model_config("scse", "137m"))
    assert counts.paper == counts.active + 1664**2
    assert round(counts.paper / 1e6, 1) == 136.5
    for family, millions in (("adapter", 136.5), ("step-adapter", 139.2)):
        other = count_parameters(model_config(family, "137m"))
        assert other.paper == other.active
        assert round(other.paper / 1e6, 1) == millions


@pytest.mark.parametrize(
    ("scale", "loops", "body", "body_head"),
    [("22m", 8, 39.3, 77.9), ("22m", 48, 235.9, 274.5), ("96m", 8, 424.7, 553.3)],
)
def test_flop_proxies_of_the_paper(scale, loops, body, body_head):
    proxy = flop_proxy(model_config("scse", scale), loops)
    assert (round(proxy.body / 1e6, 1), round(proxy.body_head / 1e6, 1)) == (body, body_head)


def test_flops_follow_the_bodies_per_step_and_saturate():
    def body(family, loops):
        return flop_proxy(model_config(family, "22m"), loops).body

    assert body("forcing-subtraction", 8) == 2 * body("scse", 8)
    assert body("unshared-8", 48) == body("unshared-8", 8) == body("scse", 8)
    assert body("unshared-8", 3) == body("scse", 3)


def test_block_applications_by_name_are_those_of_the_model(family):
    """The report counts without torch; the model is the truth."""
    for loops in (1, 3, 8, 48):
        proxy = flop_proxy(model_config(family, "mini"), loops)
        assert FAMILIES.find(family).body_applications(loops) * body_flops(SCALES["mini"]) == proxy.body
