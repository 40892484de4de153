"""Those who wait for a lane: any thread may bring and cancel sequences, the one that computes takes them in."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Several

from scse.serve.limits import Refused
from scse.serve.sequence import Sequence


class Reception:
    """Sequences without a lane, by the group that asked for them (the answers to one request).

    `bring`, `cancel` and `close` may be called from any thread, everything else by the one that computes. `refused` is
    how often nobody more could wait.
    """

    def __init__(self, most: int) -> None:
        self.waiting = self.refused = 0
        self._most = most
        self._news = threading.Condition()
        self._arrived: deque[Sequence] = deque()
        self._queues: dict[object, deque[Sequence]] = {}
        self._closed = False

    def bring(self, sequences: Several[Sequence]) -> None:
        """Queue all of them or none."""
        with self._news:
            if self._closed:
                raise Refused("the server is shutting down; ask another one", 503)
            if self.waiting + len(sequences) > self._most:
                self.refused += 1
                raise Refused(f"{self.waiting} sequences are waiting already; try again later", 429)
            self.waiting += len(sequences)
            self._arrived.extend(sequences)
            self._news.notify()

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        with self._news:
            for sequence in sequences:
                sequence.cancelled = True
            self._news.notify()

    def close(self) -> None:
        """Take nobody else."""
        with self._news:
            self._closed = True
            self._news.notify()

    def await_work(self, running: Several[Sequence]) -> bool:
        """Return when somebody waits or is running; False when it is closed and nobody does or is."""
        with self._news:
            while not (self.waiting or running):
                if self._closed:
                    return False
                self._news.wait()
        return True

    def collect(self) -> None:
        """Let those who have arrived queue up."""
        if not self._arrived:
            return
        with self._news:
            arrived, self._arrived = self._arrived, deque()
        for sequence in arrived:
            self._queues.setdefault(sequence.group, deque()).append(sequence)

    def next(self, running: Several[Sequence]) -> Sequence | None:
        """The oldest of the group that holds the fewest lanes."""
        if not self._queues:
            return None
        held = {group: sum(one.group is group for one in running) for group in self._queues}
        return self._queues[min(self._queues, key=lambda one: held[one])][0]

    def leave(self, sequence: Sequence) -> None:
        """It waits no longer."""
        queue = self._queues[sequence.group]
        queue.remove(sequence)
        if not queue:
            del self._queues[sequence.group]
        with self._news:
            self.waiting -= 1

    def drop_those_over(self, now: float) -> list[Sequence]:
        """Those who were cancelled or are past their deadline; they have left."""
        over = [one for queue in self._queues.values() for one in queue if one.over(now)]
        for sequence in over:
            self.leave(sequence)
        return over

    def send_away(self) -> list[Sequence]:
        """All who wait; nobody does any more."""
        with self._news:
            everyone = [*self._arrived, *(one for queue in self._queues.values() for one in queue)]
            self._arrived.clear()
            self._queues.clear()
            self.waiting = 0
        return everyone
