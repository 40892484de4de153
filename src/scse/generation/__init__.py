"""Generation under a cache over (loop, body, position)."""

from scse.generation.cache import KVCache, LastLoopsCache, make_cache
from scse.generation.decode import Depth, Settled, settle
from scse.generation.generate import Generation, NewToken, stream
from scse.generation.sampling import GREEDY, Sampling
from scse.generation.text import Continuation, continue_text

__all__ = [
    "GREEDY",
    "Continuation",
    "Depth",
    "Generation",
    "KVCache",
    "LastLoopsCache",
    "NewToken",
    "Sampling",
    "Settled",
    "continue_text",
    "make_cache",
    "settle",
    "stream",
]
