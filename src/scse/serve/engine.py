"""The scheduler over (request, token, loop). It knows nothing of networks or texts.

Sequences join and leave between loops. Rows of equally many new positions share one batch at any depths where the
recurrence does not look at t, and are grouped by t where it does. Prompts are taken in chunks beside the rows that
decode. What a sequence answers does not depend on what else is running; only when it does.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable

import torch
from torch import Tensor

from scse.flops import token_flops
from scse.generation import Depth, KVCache, settle
from scse.generation.sampling import likeliest
from scse.model import LoopedLM
from scse.serve.counters import Counters
from scse.serve.flight import Flight, Landed, gathered
from scse.serve.head import Head, Patience, read
from scse.serve.limits import Limits, Refused, check, needed
from scse.serve.pages import PagedCache
from scse.serve.reception import Reception
from scse.serve.sequence import Sequence, Token

log = logging.getLogger("scse.serve")


class Engine:
    """`submit` and `cancel` may be called from any thread; `tick` by one thread, which is the one that computes."""

    def __init__(self, model: LoopedLM, limits: Limits | None = None) -> None:
        self.model, self.limits, self.counters = model.eval(), limits or Limits(), Counters()
        # A family that cannot be cached says so here, in a line of its own.
        nothing = torch.zeros(1, 1, dtype=torch.long, device=model.device)
        settle(model, nothing, KVCache(model, 1, 1).append(1), Depth(1))
        self._in_step, self.head = model.recurrence.step_dependent, Head(model)
        depths = range(self.limits.loops + 1)
        self._flops = [token_flops(model.config.shape, model.recurrence.body_applications(t)) for t in depths]
        self._reception = Reception(self.limits.queue)
        self._reset()

    def _reset(self) -> None:
        self.cache = PagedCache(self.model, self.limits.lanes, self.limits.loops)
        self._free = list(range(self.limits.lanes - 1, -1, -1))
        self._running: list[Sequence] = []
        self._prefilling: deque[Sequence] = deque()
        self._ready: Flight | None = None  # those whose next token waits for a place in the batch
        self._flights: dict[tuple[int, int], Flight] = {}
        self._landed: list[Landed] = []
        self._at_head: list[tuple[Sequence, Tensor, int]] = []
        self._promised = 0
        self._patience = Patience(self.limits.batch)

    # ------------------------------------------------- from any thread

    def submit(self, sequences: list[Sequence]) -> None:
        """Queue the sequences of one request, all or none."""
        if len(sequences) > self.limits.queue:
            raise Refused(
                f"{len(sequences)} answers are more than the queue of {self.limits.queue} holds; ask for fewer"
            )
        for sequence in sequences:
            check(self.cache, self.limits, sequence.wanted)
            sequence.need = needed(self.cache, sequence.wanted)
        self._reception.bring(sequences)

    def cancel(self, sequences: Iterable[Sequence]) -> None:
        """End sequences that nobody waits for any more."""
        self._reception.cancel(sequences)

    @property
    def waiting(self) -> int:
        """Sequences that have no lane yet."""
        return self._reception.waiting

    @property
    def refused(self) -> int:
        """How often nobody more could wait."""
        return self._reception.refused

    @property
    def running(self) -> int:
        return len(self._running)

    def run(self) -> None:
        """Work until `stop` has been called and everything accepted before is answered."""
        while self._reception.await_work(self._running):
            try:
                self.tick()
            except Exception:
                log.exception("the engine failed; its sequences end, and it goes on")
                self.counters.failures += 1
                self._fail_all()

    def stop(self) -> None:
        """Take no more requests; `run` returns when those it has are answered."""
        self._reception.close()

    # ------------------------------------------------- the thread that computes

    @torch.inference_mode()
    def tick(self) -> bool:
        """One loop for every row that is under way, and what follows from it; False when nothing is left to do."""
        self._reception.collect()
        self._drop_those_over()
        self._admit()
        self._start_chunks()
        self._refill()
        begin, waiting = time.perf_counter(), self._waiting_for_head
        flights, self._flights = list(self._flights.items()), {}
        moving = sum(len(flight) for _, flight in flights)
        for (count, t), flight in flights:
            self.counters.loops += flight.count == 1
            self.counters.row_loops += len(flight) * (flight.count == 1)
            begun = time.perf_counter()
            landed = flight.advance()
            self.counters.decode_seconds += (time.perf_counter() - begun) * (flight.count == 1)
            for sequence in flight.lost:
                self.counters.failures += 1
                self._end(sequence, "failed", "the exit rule failed; the server's log says more")
            flight.lost = []
            if len(flight):
                self._flights[count, t + self._in_step] = flight
            if landed is not None:
                self._land(landed)
        self._patience.looped(time.perf_counter() - begin, waiting, moving)
        waiting, idle = self._waiting_for_head, not (self._flights or self._ready)
        if waiting and (idle or self._patience.exhausted(waiting)):
            self._read_head()
        if not self._running and not self.waiting:
            self.cache.trim()
        return bool(self._running or self.waiting)

    @property
    def _waiting_for_head(self) -> int:
        return len(self._at_head) + sum(len(landed.sequences) for landed in self._landed)

    def _drop_those_over(self) -> None:
        """End what was cancelled or is past its deadline, wherever it stands."""
        now = time.monotonic()
        for sequence in self._reception.drop_those_over(now):
            self._tell_end(sequence, sequence.over(now) or "")
        over = {one for one in self._running if one.over(now)}
        if not over:
            return
        under_way = [*self._flights.values(), *([self._ready] if self._ready else [])]
        for flight in under_way:
            flight.keep([place for place, one in enumerate(flight.sequences) if one not in over])
        self._flights = {key: flight for key, flight in self._flights.items() if len(flight)}
        self._ready = self._ready or None
        self._landed = [
            landed.keep(stay)
            for landed in self._landed
            if (stay := [place for place, one in enumerate(landed.sequences) if one not in over])
        ]
        self._at_head = [entry for entry in self._at_head if entry[0] not in over]
        self._prefilling = deque(one for one in self._prefilling if one not in over)
        for sequence in over:
            self._end(sequence, sequence.over(now) or "")

    def _admit(self) -> None:
        """Give free lanes to those who hold fewest, the oldest first; who comes next waits until its memory is free."""
        while self._free and (sequence := self._reception.next(self._running)) is not None:
            size = self.cache.need_bytes(sequence.need)
            if self._promised + size > self.limits.cache_bytes:
                return
            self._reception.leave(sequence)
            self._promised += size
            self.cache.reserve(sequence.need)
            sequence.lane = self._free.pop()
            self._running.append(sequence)
            self._prefilling.append(sequence)

    def _start_chunks(self) -> None:
        """Let chunks of prompts join while there is room for them beside what decodes."""
        under_way = sum(flight.count * len(flight) for flight in self._flights.values() if flight.count > 1)
        groups: dict[int, list[Sequence]] = {}
        while self._prefilling:
            sequence = self._prefilling[0]
            count = min(self.limits.chunk, len(sequence.wanted.prompt) - sequence.settled)
            if under_way and under_way + count > self.limits.prefill:
                break
            under_way += count
            groups.setdefault(count, []).append(self._prefilling.popleft())
        for count, sequences in groups.items():
            self._take_off(Flight(self.model, self.cache, sequences, count))

    def _refill(self) -> None:
        """Let those who are ready take the places that are free in the batch."""
        room = self.limits.batch - sum(len(flight) for flight in self._flights.values() if flight.count == 1)
        if self._ready is None or room <= 0:
            return
        if len(self._ready) <= room:
            leaving, self._ready = self._ready, None
        else:
            leaving = self._ready.split(room)
        self._take_off(leaving)

    def _take_off(self, flight: Flight) -> None:
        """Rows before their first loop join those that are there, too."""
        key = flight.count, 0
        if key in self._flights:
            self._flights[key].join(flight)
        else:
            self._flights[key] = flight

    def _land(self, landed: Landed) -> None:
        """Rows of a single position wait together for the coda and the head."""
        if landed.taken.shape[1] == 1 and all(row.awaits_a_token for row in landed.sequences):
            self._landed.append(landed)
        else:
            self._settle(landed)

    def _settle(self, landed: Landed) -> None:
        """Prompts that are not through go on with their next chunk; everything else is ready for the head."""
        all_outputs = landed.outputs(self.model)
        for sequence, outputs, taken in zip(landed.sequences, all_outputs, landed.taken.tolist(), strict=True):
            prompt, begin = len(sequence.wanted.prompt), sequence.settled
            sequence.settled += len(outputs)
            if begin < prompt and sequence.wanted.scores and not self._score(sequence, outputs, taken, begin):
                continue
            if sequence.settled < prompt:
                self._prefilling.append(sequence)
            elif sequence.wanted.new_tokens == 0:
                self._end(sequence, "length")
            else:
                self._at_head.append((sequence, outputs[-1], taken[-1]))

    def _settle_landed(self) -> None:
        """All at once, but for recurrences that look at t: these are told how many loops the rows have taken."""
        alike: dict[int, list[Landed]] = {}
        for landed in self._landed:
            alike.setdefault(landed.state.t * self._in_step, []).append(landed)
        self._landed = []
        for group in alike.values():
            self._settle(gathered(group))

    def _score(self, sequence: Sequence, outputs: Tensor, taken: list[int], begin: int) -> bool:
        """Tell what the model thought of the prompt's tokens; False where it thought nothing that is a number."""
        targets = sequence.wanted.prompt[begin + 1 : begin + 1 + len(outputs)]
        if not targets:
            return True
        logits = self.model.head(outputs[: len(targets)])
        scored = read(logits, list(targets), taken, sequence.wanted.logprobs or 0)
        if scored is None:
            self._diverged(sequence)
            return False
        sequence.sink.prompt(scored)
        return True

    def _read_head(self) -> None:
        """The head for all rows that wait for it; each then takes its next token through the loops, or has ended."""
        begin = time.perf_counter()
        self._settle_landed()
        rows, self._at_head = self._at_head, []
        logits = self.head(torch.stack([outputs for _, outputs, _ in rows]))
        best, sound = likeliest(logits)
        self._patience.read(time.perf_counter() - begin)
        self.counters.heads += 1
        self.counters.head_rows += len(rows)
        going = []
        for (sequence, _, loops), scores, good, first in zip(rows, logits, sound, best, strict=True):
            if not good:
                self._diverged(sequence)
                continue
            sampling = sequence.wanted.sampling
            picked = first if sampling.temperature == 0 else sampling.pick(scores, sequence.draws)
            if self._answer(sequence, picked, scores, loops):
                going.append(sequence)
        if going:
            begun = Flight(self.model, self.cache, going, 1)
            if self._ready is None:
                self._ready = begun
            else:
                self._ready.join(begun)
        self.counters.decode_seconds += time.perf_counter() - begin

    def _answer(self, sequence: Sequence, picked: int, logits: Tensor, loops: int) -> bool:
        """Tell the next token; whether the sequence goes on."""
        wanted, counters = sequence.wanted, self.counters
        if not sequence.answered:
            counters.first_token.add(time.monotonic() - sequence.arrived)
        counters.new_tokens += 1
        counters.new_token_loops += loops
        counters.flops += self._flops[loops]
        counters.full_flops += self._flops[wanted.loops]
        sequence.tokens.append(picked)
        sequence.spent += loops
        if picked == wanted.stop:
            self._end(sequence, "stop")
            return False
        scored = None if wanted.logprobs is None else read(logits[None], [picked], [loops], wanted.logprobs)
        if sequence.sink.token(Token(picked, loops) if scored is None else scored[0]):
            self._end(sequence, "stop")
            return False
        if sequence.answered >= wanted.new_tokens:
            self._end(sequence, "length")
            return False
        return True

    def _diverged(self, sequence: Sequence) -> None:
        self._end(sequence, "failed", "the model's numbers overflowed at this depth; ask for fewer loops")

    def _end(self, sequence: Sequence, reason: str, message: str = "") -> None:
        """Free the lane and what it held, and say why. Others may look at what is running: that ends last."""
        self.cache.release(sequence.lane)
        self.cache.reserve(sequence.need, -1)
        self._promised -= self.cache.need_bytes(sequence.need)
        self._free.append(sequence.lane)
        self._running.remove(sequence)
        self._tell_end(sequence, reason, message)

    def _tell_end(self, sequence: Sequence, reason: str, message: str = "") -> None:
        counters = self.counters
        counters.prompt_tokens += min(sequence.settled, len(sequence.wanted.prompt))
        counters.ended[reason] = counters.ended.get(reason, 0) + 1
        counters.whole.add(time.monotonic() - sequence.arrived)
        sequence.sink.end(reason, message)

    def _fail_all(self) -> None:
        """Begin anew after an error that should not have been."""
        lost = [*self._running, *self._reception.send_away()]
        self._reset()
        for sequence in lost:
            self._tell_end(sequence, "failed", "the server made a mistake; its log says more")
