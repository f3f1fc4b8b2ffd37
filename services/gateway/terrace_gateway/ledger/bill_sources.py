"""A provider's own word on attempts: its bill API, or Bedrock's log of invocations."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

import aiohttp

from terrace_gateway.calls.ports import Usage
from terrace_gateway.ledger.invocation_log import (
    InvocationLine,
    InvocationLog,
    InvocationLogError,
)
from terrace_gateway.ledger.provider_bill import Billed, BillUnreachableError, read_bill

PARALLEL_READS = 8


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


Rate = Callable[[Candidate, Usage], Awaitable[int | None]]
"""What one call of the attempt cost, with this usage and the request's images, at the price that
the attempt was reserved at; ``None``: it is not known."""


class BillSource(Protocol):
    """One provider's own log."""

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        """What was billed for each attempt that can be told now; ``calls`` 0: nothing, for sure.

        Raises ``BillUnreachableError``.
        """
        ...


class BillApi:
    """An API that is asked attempt by attempt."""

    def __init__(self, bill_url: str, *, grace_seconds: float) -> None:
        """An attempt younger than ``grace_seconds`` may be missing without being free."""
        self._bill_url = bill_url
        self._grace_seconds = grace_seconds

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
    ) -> None:
        """A missing line says "not billed" only of an attempt that it would name, only
        ``grace_seconds`` after the call must have ended, and only when the log has newer lines: it
        may be late, or switched off."""
        self._log = log
        self._rate = rate
        self._grace_seconds = grace_seconds
        self._longest = timedelta(seconds=longest_call_seconds)

    async def billed(self, candidates: Sequence[Candidate]) -> dict[str, Billed]:
        """See ``BillSource``."""
        if not candidates:
            return {}
        by_attempt = {candidate.attempt_id: candidate for candidate in candidates}
        by_request = {
            candidate.upstream_request_id: candidate.attempt_id
            for candidate in candidates
            if candidate.upstream_request_id is not None
        }
        moments = [candidate.opened_at for candidate in candidates]
        # The margin: the time of a line is Bedrock's clock, ours is the database's.
        begin = min(moments) - timedelta(minutes=5)
        end = max(moments) + self._longest + timedelta(hours=1)
        lines: dict[str, list[InvocationLine]] = {}

        def read() -> datetime:
            newest = begin
            for line in self._log.lines(begin, end):
                newest = max(newest, line.at)
                attempt_id = line.attempt_id or by_request.get(line.request_id)
                if attempt_id in by_attempt:
                    lines.setdefault(attempt_id, []).append(line)
            return newest

        try:
            newest = await asyncio.to_thread(read)
        except InvocationLogError as error:
            raise BillUnreachableError(str(error)) from error
        found: dict[str, Billed] = {}
        for attempt_id, candidate in by_attempt.items():
            if attempt_id in lines:
                found[attempt_id] = await billed_by(lines[attempt_id], candidate, self._rate)
            elif (
                candidate.named
                and candidate.age_seconds > self._longest.total_seconds() + self._grace_seconds
                and newest > candidate.opened_at
            ):
                found[attempt_id] = Billed(0, False, 0, 0, 0, "upstream_error")
        return found

    async def named(self, begin: datetime, end: datetime) -> list[InvocationLine]:
        """Lines of this time that name an attempt, by time. Raises ``BillUnreachableError``."""

        def read() -> list[InvocationLine]:
            return [line for line in self._log.lines(begin, end) if line.attempt_id is not None]

        try:
            lines = await asyncio.to_thread(read)
        except InvocationLogError as error:
            raise BillUnreachableError(str(error)) from error
        return sorted(lines, key=lambda line: (line.at, line.request_id))


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
