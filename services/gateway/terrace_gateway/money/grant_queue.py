"""The one conversation of a holder with the authority: one message at a time, asks in batches.

Callers that need more than is idle queue here; all that wait go into the next message, and what it
grants besides serves those that came meanwhile. After a message without an answer the next one is a
fence: it takes the place (the sequence) of the lost one, so that that can never take effect later,
and tells what holds.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from terrace_gateway.calls.ports import Amounts, AuthorityUnavailableError, Cap, Hold
from terrace_gateway.clock import Clock
from terrace_gateway.ending import end_tasks
from terrace_gateway.money.grants import (
    Answer,
    Ask,
    MessageLostError,
    Need,
    SliceAuthority,
    Verdict,
)
from terrace_gateway.money.slice_table import SliceTable

log = structlog.get_logger()

BATCH = 100
RETURN_BATCH = 500
TRIES = 3


@dataclass(slots=True, eq=False)
class Request:
    """A caller that waits."""

    attempt_id: str
    caps: Sequence[Cap]
    amounts: Amounts
    answer: "asyncio.Future[Hold | Verdict]"
    since: float | None
    tries: int = 0
    asks: list[Ask] = field(default_factory=list[Ask])


class GrantQueue:
    """Works while there is something to say; ``close`` ends it."""

    def __init__(self, authority: SliceAuthority, table: SliceTable, clock: Clock) -> None:
        self._authority = authority
        self._table = table
        self._clock = clock
        self._waiting: list[Request] = []
        self._returns: set[int] = set()
        self._declare = False
        self._fence: list[Request] | None = None  # of the message that has no answer
        self._sequence = 0
        self._worker: asyncio.Task[None] | None = None
        self.heard: datetime | None = None
        """The database's time of the last beat."""
        self.messages = 0
        """Grant messages that were answered."""

    def begin(self) -> None:
        """A new incarnation: nothing of the old one is to be said any more."""
        self._returns.clear()
        self._declare = False
        self._fence = None
        self._sequence = 0

    async def ask(
        self,
        attempt_id: str,
        caps: Sequence[Cap],
        amounts: Amounts,
        *,
        since: float | None = None,
    ) -> Hold | Verdict:
        """A hold, or the verdict of a refusal. ``since``: ``at`` of the first refusal.

        Raises ``AuthorityUnavailableError``.
        """
        answer: asyncio.Future[Hold | Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(Request(attempt_id, caps, amounts, answer, since))
        self.kick()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                hold = answer.result()  # it was granted in the moment in which the caller left
                if isinstance(hold, Hold):
                    self._table.release(hold, [0] * len(hold.charges))
            raise

    def give_back(self, counters: Sequence[int]) -> None:
        """Tell the authority what is counted as returned."""
        self._returns.update(counters)
        self.kick()

    def declare(self) -> None:
        """Tell the authority everything that is held."""
        self._declare = True
        self.kick()

    def kick(self) -> None:
        """Work if there is something to say."""
        busy = self._worker is not None and not self._worker.done()
        if not busy and self._has_something_to_say():
            self._worker = asyncio.get_running_loop().create_task(self._work())

    async def settle_down(self) -> None:
        """Wait until everything was said, or the authority is away."""
        if self._worker is not None:
            await asyncio.wait([self._worker])

    async def close(self) -> None:
        """Callers that wait get ``AuthorityUnavailableError``."""
        if self._worker is not None:
            await end_tasks([self._worker], every_seconds=1)
        self._fail(self._take_waiting(len(self._waiting)), "this guard is ending")

    def _has_something_to_say(self) -> bool:
        return bool(self._waiting or self._returns or self._declare or self._fence is not None)

    async def _work(self) -> None:
        batch: list[Request] = []
        while self._has_something_to_say():
            incarnation = self._table.incarnation
            try:
                if self._fence is not None:
                    await self._send_fence(incarnation)
                if self._declare:
                    await self._send_declaration(incarnation)
                if self._returns:
                    await self._send_returns(incarnation)
                batch = self._take_waiting(BATCH)
                batch = [request for request in batch if not self._serve_warm(request)]
                if batch:
                    await self._send_grant(incarnation, batch)
                batch = []
            except AuthorityUnavailableError as error:
                if incarnation == self._table.incarnation:
                    again = [r for r in batch if r.tries < TRIES and self._fence is not None]
                    gone = [r for r in batch if r not in again]
                    self._fail(gone, str(error))
                    if again:  # fence first; if that is lost too, they fail there
                        self._waiting[:0] = again
                        batch = []
                        continue
                else:
                    self._fail(batch, str(error))
                self._fail(self._take_waiting(len(self._waiting)), str(error))
                return
            except BaseException as error:
                # Whatever it is, nobody may wait for ever; the fence makes the next start clean.
                self._fail(batch, f"the grant failed ({type(error).__name__})")
                self._fail(self._take_waiting(len(self._waiting)), "the grant failed")
                if isinstance(error, Exception):
                    log.exception("grant_queue_failed")
                    return
                raise

    def _take_waiting(self, limit: int) -> list[Request]:
        taken, self._waiting = self._waiting[:limit], self._waiting[limit:]
        return [request for request in taken if not request.answer.done()]

    def _serve_warm(self, request: Request) -> bool:
        now = self._clock.monotonic()
        hold = self._table.reserve(request.attempt_id, request.caps, request.amounts, now)
        if hold is not None:
            request.answer.set_result(hold)
        return hold is not None

    async def _send_grant(self, incarnation: int, batch: list[Request]) -> None:
        sent_at = self._clock.monotonic()
        if not self._table.is_live(sent_at):
            raise AuthorityUnavailableError("the lease of this guard has ended")
        for request in batch:
            request.tries += 1
            request.asks = self._table.set_aside(request.caps, request.amounts, sent_at)
        self._sequence += 1
        caps = _caps(batch)
        try:
            answer = await self._authority.grant(
                incarnation,
                self._sequence,
                sorted(caps),
                [Need(request.asks, request.since) for request in batch],
            )
        except BaseException as error:
            if incarnation == self._table.incarnation:
                if isinstance(error, MessageLostError) and not error.ambiguous:
                    self._put_back(batch)
                else:
                    self._fence = batch
            raise
        if incarnation != self._table.incarnation:
            raise AuthorityUnavailableError("the lease of this guard has ended")
        self._hear(answer, batch, caps, sent_at=sent_at)
        if answer.state == "repeat":  # another process with our identity: never grant on its word
            raise AuthorityUnavailableError("the authority has heard this message before")
        decided = zip(batch, answer.verdicts, strict=True)
        self._waiting[:0] = [r for r, verdict in decided if not self._decide(r, verdict)]

    def _decide(self, request: Request, verdict: Verdict) -> bool:
        """False: the grant came after the end of its window, where it stays idle; ask again."""
        if request.answer.done():
            return True  # its caller has left: what was granted is idle
        if not verdict.granted:
            request.answer.set_result(verdict)
            return True
        for cap in request.caps:
            if cap.mode == "audit":
                self._table.mark_over(cap, cap.cap_id in verdict.over)
        now = self._clock.monotonic()
        hold = self._table.reserve_granted(request.attempt_id, request.caps, request.amounts, now)
        if hold is not None:
            request.answer.set_result(hold)
        elif not self._table.is_live(now):
            self._fail([request], "the lease of this guard has ended")
        elif request.tries < TRIES:
            return False
        else:
            self._fail([request], "each grant came after the end of its window")
        return True

    async def _send_fence(self, incarnation: int) -> None:
        lost = self._fence or []
        sent_at = self._clock.monotonic()
        caps = _caps(lost)
        answer = await self._authority.grant(incarnation, self._sequence, sorted(caps), [])
        if incarnation == self._table.incarnation:
            self._fence = None
            self._hear(answer, lost, caps, sent_at=sent_at)

    def _hear(
        self, answer: Answer, batch: list[Request], caps: dict[int, Cap], *, sent_at: float
    ) -> None:
        self._put_back(batch)
        if answer.state == "ended":
            self._table.lease_ends_at = min(self._table.lease_ends_at, sent_at)
            raise AuthorityUnavailableError("the lease of this guard has ended")
        if answer.state == "suspended":
            raise AuthorityUnavailableError("grants are suspended after a failover")
        self.messages += 1
        for state in answer.slices:
            self._table.hear(caps[state.cap_id], state, sent_at=sent_at)

    def _put_back(self, batch: list[Request]) -> None:
        for request in batch:
            self._table.put_back(request.asks)
            request.asks = []

    async def _send_returns(self, incarnation: int) -> None:
        counters = sorted(self._returns)[:RETURN_BATCH]
        self._table.give_back(counters)  # also what became idle since it was asked for
        totals = list(self._table.totals(counters))
        await self._authority.give_back(
            incarnation,
            [counter for counter, _, _ in totals],
            [back for _, _, back in totals],
            self.heard,
        )
        said = {counter: back for counter, _, back in totals}
        for counter, _, back in list(self._table.totals(counters)):
            if said.get(counter) == back:
                self._returns.discard(counter)
        self._returns.difference_update(set(counters) - set(said))

    async def _send_declaration(self, incarnation: int) -> None:
        totals = list(self._table.totals())
        self._declare = False
        try:
            live = await self._authority.declare(
                incarnation,
                [counter for counter, _, _ in totals],
                [granted for _, granted, _ in totals],
                [returned for _, _, returned in totals],
            )
        except AuthorityUnavailableError:
            self._declare = incarnation == self._table.incarnation
            raise
        log.info("slices_declared", slices=len(totals), live=live)

    @staticmethod
    def _fail(requests: list[Request], message: str) -> None:
        for request in requests:
            if not request.answer.done():
                request.answer.set_exception(AuthorityUnavailableError(message))


def _caps(batch: list[Request]) -> dict[int, Cap]:
    return {cap.cap_id: cap for request in batch for cap in request.caps}
