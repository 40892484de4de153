"""How fast the engine is at full depth with a whole batch: what early exit is compared with in the metrics."""

from __future__ import annotations

from scse.serve.counters import Counters
from scse.serve.engine import Engine
from scse.serve.limits import Refused
from scse.serve.sequence import Sequence, Token, Wanted

TOKENS = 2


class _Nobody:
    """A sink that does not listen."""

    def prompt(self, scored: list[Token]) -> None: ...

    def token(self, new: Token) -> bool:
        return False

    def end(self, reason: str, message: str = "") -> None: ...


def calibrate(engine: Engine, loops: int) -> None:
    """Decode a few tokens before anything has been asked, once to warm up and once on the clock; nothing else is kept.

    The share of the FLOP bound that early exit reaches is a ratio of rates: with F FLOPs and s seconds a token, it is
    (s_full / s) / (F_full / F) = (F / s) / (F_full / s_full).
    """
    for _ in range(2):
        counters = engine.counters = Counters()
        nobody = _Nobody()
        rows = min(engine.limits.batch, engine.limits.lanes, engine.limits.queue)
        try:
            engine.submit([Sequence(Wanted((0,), TOKENS, loops), nobody, nobody) for _ in range(rows)])
        except Refused:  # too little memory even for this: then there is nothing to compare with
            return
        while engine.tick():
            pass
    rate = counters.flops / counters.decode_seconds if counters.decode_seconds else 0.0
    engine.counters = Counters(full_rate=rate)
