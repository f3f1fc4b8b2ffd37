"""A provider's own word on attempts: its bill API, or Bedrock's log of invocations."""

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Iterator,
    Sequence,
)
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice, pairwise
from typing import Protocol

import aiohttp

from terrace_gateway.calls.ports import Usage
from terrace_gateway.ledger.bills.invocation_log import (
    InvocationLine,
    InvocationLog,
    InvocationLogError,
)
from terrace_gateway.ledger.bills.provider_bill import Billed, BillUnreachableError, read_bill
from terrace_gateway.ledger.bills.silent_attempts import Silence, SilentAttempts

PARALLEL_READS = 8
SECOND_LOOK_SECONDS = 24 * 3600
"""So long a refusal is looked for of which nothing can be proved: it counts nothing already."""
MAX_SILENCE = timedelta(minutes=30)
"""Between two lines of a log. Longer, it may have been off, and what is missing may be billed."""
CLOCKS = timedelta(minutes=5)
"""The time of a line is Bedrock's clock, ours is the database's."""
LATE = timedelta(hours=1)
"""So long after its call's end a line is looked for."""
NAMED_LINES = 5_000
"""Of a log's lines that name an attempt, so many are held at a time."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """An attempt to look up. ``state``: ``unknown``, ``free``, ``not_billed``, ``settled``."""

    attempt_id: str
    provider: str
    state: str
    age_seconds: float
    opened_at: datetime
    model: str
    upstream_request_id: str | None = None
    old: bool = False
    """Of the release before: its row is in ``attempt``, its entries in ``ledger``."""
    deployment: str | None = None
    price_version: str | None = None
    """What it was reserved at."""
    policy_version: int | None = None
    images: int = 0
    """In its request."""
    short_cache_writes: int = 0
    """Tokens that its answer said were written into the cache for 5 minutes."""
    named: bool = True
    """The log would have its name: that it is missing there says something."""
    hard_limit_seconds: int = 0
    """After which its call was given up; 0: not known."""

    @property
    def is_past(self) -> bool:
        """A refusal that was looked for long enough."""
        return self.state == "free" and self.age_seconds > SECOND_LOOK_SECONDS


Rate = Callable[[Candidate, Usage], Awaitable[int | None]]
"""What one call of the attempt cost, with this usage and the request's images, at the price that
the attempt was reserved at; ``None``: it is not known."""
SentHere = Callable[[Sequence[Candidate]], Awaitable[Collection[str]]]
"""Ids of those whose bill is in the log that is read now, if there is one. Others may be billed in
another: that they are missing here says nothing."""


class BillSource(Protocol):
    """One provider's own log."""

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        """What was billed for each attempt that can be told now; ``calls`` 0: nothing, for sure.

        Raises ``BillUnreachableError``.
        """
        ...


class BillApi:
    """An API that is asked attempt by attempt."""

    def __init__(self, bill_url: str, *, grace_seconds: float, sent_here: SentHere) -> None:
        """An attempt younger than ``grace_seconds`` may be missing without being free."""
        self._bill_url = bill_url
        self._grace_seconds = grace_seconds
        self._sent_here = sent_here

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        """See ``BillSource``."""
        gate = asyncio.Semaphore(PARALLEL_READS)
        found: dict[str, Billed] = {}
        failed: list[BillUnreachableError] = []
        async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:

            async def one(candidate: Candidate) -> None:
                async with gate:
                    if failed:
                        return
                    try:
                        bill = await read_bill(session, self._bill_url, candidate.attempt_id)
                    except BillUnreachableError as error:
                        failed.append(error)
                        return
                young = candidate.age_seconds < self._grace_seconds
                if not bill.in_flight and not (bill.calls == 0 and young):
                    found[candidate.attempt_id] = bill

            await asyncio.gather(*(one(candidate) for candidate in candidates))
        if failed:
            raise failed[0]
        missing = [one for one in candidates if one.attempt_id in found]
        missing = [one for one in missing if found[one.attempt_id].calls == 0]
        here = await self._sent_here(missing)
        for candidate in missing:
            if candidate.attempt_id not in here and not candidate.is_past:
                del found[candidate.attempt_id]
        return found


class BedrockBill:
    """Bedrock's log of invocations, priced by us. The log has no money, only tokens."""

    def __init__(
        self,
        log: InvocationLog,
        rate: Rate,
        *,
        grace_seconds: float,
        longest_call_seconds: float,
        sent_here: SentHere,
        silent: SilentAttempts | None = None,
    ) -> None:
        """A missing line says "not billed" only of an attempt that it would name, and that was sent
        where this log is; only ``grace_seconds`` after the call must have ended; and only if the
        log was on from before the call until after its end: from a line that is not younger than
        the attempt to one that is not older than its end there is no silence of more than
        ``MAX_SILENCE``.

        ``silent``: what passes of before kept of this log; ``None``: nothing.
        """
        self._log = log
        self._rate = rate
        self._grace_seconds = grace_seconds
        self._longest = longest_call_seconds
        self._sent_here = sent_here
        self._silent = silent or SilentAttempts()

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        """See ``BillSource``. A stretch of the log that said nothing of all its attempts is read
        again only when something else is there, or somebody else is looked for."""
        if not candidates:
            return {}
        by_attempt = {candidate.attempt_id: candidate for candidate in candidates}
        by_request = {
            candidate.upstream_request_id: candidate.attempt_id
            for candidate in candidates
            if candidate.upstream_request_id is not None
        }
        open_ones = [one for one in candidates if one.state != "settled"]
        lines: dict[str, list[InvocationLine]] = {}
        moments: set[datetime] = set()
        marks: dict[str, bytes] = {}
        silent: dict[str, Silence] = {}
        near = self._spans(open_ones)

        def read() -> None:
            for begin, end, inside in self._stretches(candidates):
                asked = self._marks(begin, end, inside)  # before its lines: later ones are new
                known = self._silent.still(asked)
                if len(known) == len(inside):
                    silent.update(known)
                    continue
                told = False
                for line in self._log.lines(begin, end):
                    if _within(near, line.at):
                        moments.add(line.at)
                    attempt_id = line.attempt_id or by_request.get(line.request_id)
                    if attempt_id in by_attempt:
                        lines.setdefault(attempt_id, []).append(line)
                        told = True
                if not told:
                    marks.update(asked)

        try:
            await asyncio.to_thread(read)
        except InvocationLogError as error:
            raise BillUnreachableError(str(error)) from error
        found = {
            attempt_id: await billed_by(of_it, by_attempt[attempt_id], self._rate)
            for attempt_id, of_it in lines.items()
        }
        seen = sorted(moments)
        for one in open_ones:
            if one.attempt_id not in found and one.attempt_id not in silent:
                was_on = _was_on(seen, one.opened_at, self._end(one))
                silent[one.attempt_id] = Silence(marks.get(one.attempt_id, b""), was_on)
        self._silent.keep(silent)
        missing = [
            one
            for one in open_ones
            if one.attempt_id not in found
            and one.named
            and one.age_seconds > self._seconds(one) + self._grace_seconds
            and silent[one.attempt_id].was_on
        ]
        past = {one.attempt_id for one in candidates if one.is_past} - found.keys()
        for attempt_id in past.union(await self._sent_here(missing)):
            found[attempt_id] = Billed(0, False, 0, 0, 0, "upstream_error")
        return found

    def _seconds(self, candidate: Candidate) -> float:
        """How long its call can have been."""
        return max(self._longest, candidate.hard_limit_seconds)

    def _end(self, candidate: Candidate) -> datetime:
        return candidate.opened_at + timedelta(seconds=self._seconds(candidate))

    def _spans(self, candidates: Iterable[Candidate]) -> list[tuple[datetime, datetime]]:
        """When lines of these can have been written, and those before and after them."""
        return _merged(
            (one.opened_at - MAX_SILENCE - CLOCKS, self._end(one) + LATE) for one in candidates
        )

    def _stretches(
        self, candidates: Sequence[Candidate]
    ) -> Iterator[tuple[datetime, datetime, list[Candidate]]]:
        """Each span, with the candidates whose lines it may have."""
        by_time = sorted(candidates, key=lambda one: one.opened_at)
        for begin, end in self._spans(candidates):
            first = bisect_left(by_time, begin, key=lambda one: one.opened_at)
            last = bisect_right(by_time, end, key=lambda one: one.opened_at)
            yield begin, end, by_time[first:last]

    def _marks(
        self, begin: datetime, end: datetime, inside: Sequence[Candidate]
    ) -> dict[str, bytes]:
        """Of each open attempt, what is looked for and what there is to read; none if only reading
        tells."""
        open_ones = [one for one in inside if one.state != "settled"]
        contents = self._log.contents(begin, end) if len(open_ones) == len(inside) else None
        if contents is None:
            return {}
        what = (begin, end, contents)
        return {
            one.attempt_id: sha256(
                repr((what, one.opened_at, self._end(one), one.upstream_request_id)).encode()
            ).digest()
            for one in open_ones
        }

    async def named(self, begin: datetime, end: datetime) -> AsyncIterator[list[InvocationLine]]:
        """Lines of this time that name an attempt, in no order, at most ``NAMED_LINES`` at a time:
        a day of them is more than a guard may hold. Raises ``BillUnreachableError``."""
        lines = self._log.lines(begin, end)

        def read() -> list[InvocationLine]:
            return list(
                islice((line for line in lines if line.attempt_id is not None), NAMED_LINES)
            )

        try:
            while some := await asyncio.to_thread(read):
                yield some
        except InvocationLogError as error:
            raise BillUnreachableError(str(error)) from error


def _merged(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """The same time in as few spans, by time: what lies between attempts is not read."""
    found: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1] + LATE:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _within(spans: Sequence[tuple[datetime, datetime]], moment: datetime) -> bool:
    at = bisect_right(spans, moment, key=lambda span: span[0]) - 1
    return at >= 0 and moment <= spans[at][1]


def _was_on(moments: Sequence[datetime], begin: datetime, end: datetime) -> bool:
    """Whether a log with lines of these moments, sorted, was on from ``begin`` to ``end``."""
    first, last = bisect_right(moments, begin) - 1, bisect_left(moments, end)
    if first < 0 or last == len(moments):
        return False
    return all(later - one <= MAX_SILENCE for one, later in pairwise(moments[first : last + 1]))


async def billed_by(lines: Sequence[InvocationLine], candidate: Candidate, rate: Rate) -> Billed:
    """The sum of an attempt's lines, each request once. Each is priced as the call that it is.

    A line does not say how long its cache writes live. Those that the answer did not call short
    are taken at the dearer price.
    """
    distinct = {line.request_id: line for line in lines}.values()
    usages = [_usage(line) for line in distinct]
    cost = 0
    priced = True
    short = candidate.short_cache_writes
    for usage in usages:
        if usage.all_input_tokens or usage.output_tokens:
            hour = usage.cache_write_tokens - min(short, usage.cache_write_tokens)
            short -= usage.cache_write_tokens - hour
            ways = [usage] if hour == 0 else [usage, replace(usage, cache_write_1h_tokens=hour)]
            costs = [await rate(candidate, way) for way in ways]
            known = [one for one in costs if one is not None]
            cost += max(known, default=0)
            priced = priced and len(known) == len(costs)
    return Billed(
        calls=len(usages),
        in_flight=False,
        input_tokens=sum(usage.input_tokens for usage in usages),
        output_tokens=sum(usage.output_tokens for usage in usages),
        cost_micro_usd=cost,
        priced=priced,
        outcome="upstream_error" if all(line.error is not None for line in distinct) else "ok",
        cache_read_tokens=sum(usage.cache_read_tokens for usage in usages),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in usages),
    )


def _usage(line: InvocationLine) -> Usage:
    return Usage(
        input_tokens=line.input_tokens,
        output_tokens=line.output_tokens,
        cache_read_tokens=line.cache_read_tokens,
        cache_write_tokens=line.cache_write_tokens,
    )
