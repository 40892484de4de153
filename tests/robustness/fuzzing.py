"""What the fuzz tests share: how much, how inputs are damaged, and the bounds that no input may make us exceed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("SCSE_FUZZ", "40"))
SECONDS_TO_HANG = 600 + 60 * CASES  # far beyond what a busy machine needs for all cases of a test
EXTRA_MEMORY = 2 << 30  # bytes beyond what the process holds when the test begins

many = settings(
    max_examples=CASES,
    deadline=None,
    derandomize="SCSE_FUZZ" not in os.environ,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

mutations = st.lists(
    st.tuples(
        st.sampled_from(["flip", "cut", "insert", "delete", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=4,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def mutate(content: bytes, changes) -> bytes:
    """Damage as disks, editors and people do it."""
    for kind, where, junk in changes:
        at = int(where * len(content))
        if kind == "flip" and content:
            content = content[:at] + bytes([content[at] ^ (junk[0] or 1)]) + content[at + 1 :]
        elif kind == "cut":
            content = content[:at]
        elif kind == "insert":
            content = content[:at] + junk + content[at:]
        elif kind == "delete":
            content = content[:at] + content[at + len(junk) :]
        else:
            content = content[:at] + content[at : at + 40] * 3 + content[at:]
    return content


def alter(data, where: list[int], value):
    """A JSON value with one part of it, found by following `where`, replaced."""
    if not where or not isinstance(data, dict | list) or not data:
        return value
    if isinstance(data, list):
        at = where[0] % len(data)
        return [*data[:at], alter(data[at], where[1:], value), *data[at + 1 :]]
    name = sorted(data)[where[0] % len(data)]
    return {**data, name: alter(data[name], where[1:], value)}


def one_line(error: Exception) -> None:
    assert len(str(error).strip().splitlines()) == 1, error


@contextlib.contextmanager
def within_bounds():
    """Fail with MemoryError beyond the allowance, and with TimeoutError where a test hangs."""
    with open("/proc/self/statm") as statistics:
        held = int(statistics.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + EXTRA_MEMORY, before[1]))

    def too_long(number, frame):
        raise TimeoutError("an input makes it hang")

    handler = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS_TO_HANG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
