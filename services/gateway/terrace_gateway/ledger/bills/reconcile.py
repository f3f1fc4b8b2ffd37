"""Reconciliation: the provider's own log decides what we had to assume, and checks what we settled.

Candidates are attempts that were given up or lost (``unknown``), and refusals that we counted as
free; with ``recheck_hours`` also those that were settled from usage. Attempts that a live guard is
serving are never touched: they are still open. Each provider that has a log is asked about its own
oldest ones, so that none waits behind those of another.

A missing line says something only of an attempt that the log would have named, that was sent where
this log is (``bill_places``), and while the log was on (``bill_sources``). No log has askings of
guardrails. Bedrock's names an attempt that the guard named (see ``NAMED_ATTEMPT_PREFIX``) or has
a request id of; others are looked for during a day, and only a line decides.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, LiteralString

import structlog
from psycopg.types.json import Jsonb

from terrace_common.names import NAMED_ATTEMPT_PREFIX
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database
from terrace_gateway.ledger.bills.bill_sources import (
    SECOND_LOOK_SECONDS,
    BedrockBill,
    BillSource,
    Candidate,
)
from terrace_gateway.ledger.bills.provider_bill import Billed, BillUnreachableError
from terrace_gateway.ledger.bills.strangers import unknown_to_ledger
from terrace_gateway.ledger.reaper import REFUSALS, SILENT_SECONDS

log = structlog.get_logger()

WRITER = "reconcile"
PASS_LIMIT = 10_000
MAX_DRIFTS = 100
RECHECK_SECONDS = 300
"""So long the settled attempts of a recheck may take to be found."""


_PREFIX: LiteralString = NAMED_ATTEMPT_PREFIX


def _named(surface: LiteralString, request_id: LiteralString) -> LiteralString:
    """Whether the log would have its name. ``by_name``: providers whose log has not every one's."""
    return f"""(provider <> ALL (%(by_name)s) OR {request_id} IS NOT NULL
        OR coalesce(starts_with({surface}, 'converse'), false)
        OR starts_with(attempt_id, '{_PREFIX}'))"""


def _asked(named: LiteralString, purpose: LiteralString) -> LiteralString:
    """Whether its provider is asked about it."""
    return f"""({purpose} IS DISTINCT FROM 'guardrail' AND ({named}
        OR opened_at > clock_timestamp() - make_interval(secs => %(day)s)))"""


_OLD_NAMED = _named("surface", "NULL")
_OPEN_NAMED = _named("record ->> 'surface'", "upstream_request_id")
_CLOSED_NAMED = _named("surface", "upstream_request_id")
_OLD = _asked(_OLD_NAMED, "NULL")
_OPEN = _asked(_OPEN_NAMED, "record ->> 'purpose'")

# The oldest first; what could not be decided for a week lets younger ones pass.
_CANDIDATES: LiteralString = f"""
SELECT * FROM (
SELECT attempt_id, provider, CASE state WHEN 'settled' THEN 'free' ELSE state END,
       extract(epoch FROM clock_timestamp() - opened_at)::float, opened_at, model,
       NULL::text, true, deployment, price_version, NULL::bigint, 0::bigint, 0::bigint,
       {_OLD_NAMED}, hard_limit_seconds
FROM attempt WHERE provider = %(provider)s AND {_OLD}
  AND (state = 'unknown' OR (state = 'settled' AND outcome = 'upstream_error'))
UNION ALL
SELECT attempt_id, provider, state, extract(epoch FROM clock_timestamp() - opened_at)::float,
       opened_at, record ->> 'model', upstream_request_id, false, record ->> 'deployment',
       record ->> 'price_version', (record ->> 'policy_version')::bigint,
       coalesce((record ->> 'images')::bigint, 0), 0::bigint, {_OPEN_NAMED},
       hard_limit_seconds
FROM open_attempt WHERE provider = %(provider)s AND state IN ('unknown', 'free') AND {_OPEN}
) c
ORDER BY opened_at < clock_timestamp() - interval '7 days', opened_at LIMIT %(limit)s
"""  # noqa: S608  constants of this module
# "Not billed" is looked at again: a request that was on its way may have been billed since.
_SECOND_LOOKS: LiteralString = f"""
SELECT attempt_id, provider, 'not_billed',
       extract(epoch FROM clock_timestamp() - opened_at)::float, opened_at, model, NULL::text, true,
       deployment, price_version, NULL::bigint, 0::bigint, 0::bigint, {_OLD_NAMED},
       hard_limit_seconds
FROM attempt
WHERE provider = %(provider)s AND state = 'reconciled' AND outcome = 'upstream_error'
  AND opened_at > clock_timestamp() - make_interval(secs => %(seconds)s) AND {_OLD}
UNION ALL
SELECT attempt_id, provider, state, extract(epoch FROM clock_timestamp() - opened_at)::float,
       opened_at, record ->> 'model', upstream_request_id, false, record ->> 'deployment',
       record ->> 'price_version', (record ->> 'policy_version')::bigint,
       coalesce((record ->> 'images')::bigint, 0), 0::bigint, {_OPEN_NAMED},
       hard_limit_seconds
FROM open_attempt WHERE provider = %(provider)s AND state = 'not_billed' AND {_OPEN}
  AND opened_at > clock_timestamp() - make_interval(secs => %(seconds)s)
ORDER BY 5 DESC LIMIT %(limit)s
"""  # noqa: S608  constants of this module
_NOW: LiteralString = "SELECT clock_timestamp()"
# From a constant on, not from a moment before clock_timestamp(): other months are not read.
SETTLED: LiteralString = f"""
SELECT attempt_id, provider, 'settled', extract(epoch FROM clock_timestamp() - opened_at)::float,
       opened_at, model, upstream_request_id, false, deployment, price_version, policy_version,
       images, cache_write_tokens - cache_write_1h_tokens, {_CLOSED_NAMED},
       0
FROM ledger_entry
WHERE provider = %(provider)s AND kind = 'attempt' AND NOT late AND outcome <> 'not_sent'
  AND purpose IS DISTINCT FROM 'guardrail' AND opened_at > %(since)s
  AND NOT EXISTS (SELECT FROM open_attempt o WHERE o.attempt_id = ledger_entry.attempt_id)
ORDER BY opened_at DESC LIMIT %(limit)s
"""  # noqa: S608  constants of this module
# That nobody can be asked about: they count as they are.
_UNDECIDED: LiteralString = f"""
SELECT (SELECT count(*) FROM attempt WHERE state = 'unknown'
        AND NOT (provider = ANY (%(asked)s) AND {_OLD}))
     + (SELECT count(*) FROM open_attempt WHERE state = 'unknown'
        AND NOT (provider = ANY (%(asked)s) AND {_OPEN}))
"""  # noqa: S608  constants of this module
_FORGET_FREE: LiteralString = f"""
DELETE FROM open_attempt WHERE state = 'free' AND NOT (provider = ANY (%(asked)s) AND {_OPEN})
  AND opened_at < clock_timestamp() - make_interval(secs => %(seconds)s)
"""  # noqa: S608  constants of this module
_ORPHANS: LiteralString = """
SELECT (SELECT count(*) FROM attempt a JOIN incarnation i USING (incarnation_id)
        WHERE a.state = 'open' AND (i.ended_at IS NOT NULL
            OR i.heartbeat_at < clock_timestamp() - make_interval(secs => %s)))
     + (SELECT count(*) FROM open_attempt o LEFT JOIN incarnation i USING (incarnation_id)
        WHERE o.state = 'open' AND (i.incarnation_id IS NULL OR i.closed_at IS NOT NULL
            OR i.lease_until < clock_timestamp()))
"""
_SUMS: LiteralString = """
SELECT coalesce(sum(amount_micro_usd), 0)::bigint FROM ledger_entry
WHERE attempt_id = %s AND opened_at = %s AND NOT late
  AND kind IN ('attempt', 'unknown', 'correction')
"""
_RECONCILE_OLD: LiteralString = "SELECT reconcile_attempt(%s, %s, %s, %s, %s, %s)"
_RECONCILE: LiteralString = "SELECT reconcile_entry(%s, %s, %s, %s, %s)"


@dataclass
class _Tally:
    checked: int = 0
    trued_up: int = 0
    not_billed: int = 0
    still_open: int = 0
    unreachable: set[str] = field(default_factory=set[str])
    rechecked: int = 0
    drifted: int = 0
    drift_micro_usd: int = 0
    unpriced: int = 0
    drifts: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


class Reconciler:
    """Runs when the admin API asks; several at once do no harm."""

    def __init__(
        self,
        database: Database,
        sources: Callable[[], Mapping[str, BillSource]],
        *,
        replica: str,
        reap: Sequence[Callable[[], Awaitable[object]]] = (),
    ) -> None:
        """``sources`` by name of provider; one that has none cannot be decided. ``reap``: what
        gives up lost attempts, done before each pass."""
        self._database = database
        self._sources = sources
        self._replica = replica
        self._reap = tuple(reap)
        self.corrected = 0
        """Attempts corrected since the start."""

    async def reconcile(self, *, recheck_hours: int = 0) -> dict[str, Any]:
        """One pass. Raises ``AuthorityUnavailableError``.

        ``trued_up`` counts attempts found on a bill, ``not_billed`` unknown ones that are on none,
        ``still_open`` those that cannot be decided (yet), ``drifted`` settled ones of the last
        ``recheck_hours`` that cost another amount than we had settled (``drift_micro_usd``:
        bill minus ledger), ``unpriced`` those whose recorded price cannot be found (nothing is
        written, they are among ``drifts``), ``unknown_calls`` lines of their logs whose attempt no
        ledger knows.
        """
        for reap in self._reap:
            await reap()
        sources = self._sources()
        by_name = [name for name, source in sources.items() if isinstance(source, BedrockBill)]
        common = {"by_name": by_name, "day": SECOND_LOOK_SECONDS, "seconds": SECOND_LOOK_SECONDS}
        without = {**common, "asked": list(sources)}
        async with self._database.connection() as connection:
            await connection.execute(_FORGET_FREE, without)
            undecided = await (await connection.execute(_UNDECIDED, without)).fetchone()
            orphans = await (await connection.execute(_ORPHANS, (SILENT_SECONDS,))).fetchone()
        tally = _Tally(still_open=sum(row[0] for row in (undecided, orphans) if row is not None))
        for provider, source in sources.items():
            values = {**common, "provider": provider, "limit": PASS_LIMIT}
            candidates = await self._candidates(_CANDIDATES, values)
            tally.checked += len(candidates)
            group = candidates + await self._candidates(_SECOND_LOOKS, values)
            if recheck_hours:
                group += await self._settled(values, hours=recheck_hours)
            if group:
                await self._provider(provider, source, group, tally)
        self.corrected += tally.trued_up + tally.not_billed + tally.drifted
        strangers: dict[str, Any] = {"unknown_calls": 0, "unknown_to_ledger": []}
        if recheck_hours:
            strangers = await unknown_to_ledger(self._database, sources, hours=recheck_hours)
        return {
            **strangers,
            "checked": tally.checked,
            "trued_up": tally.trued_up,
            "not_billed": tally.not_billed,
            "still_open": tally.still_open,
            "unreachable": sorted(tally.unreachable),
            "rechecked": tally.rechecked,
            "drifted": tally.drifted,
            "drift_micro_usd": tally.drift_micro_usd,
            "unpriced": tally.unpriced,
            "drifts": tally.drifts,
        }

    async def _candidates(
        self, query: LiteralString, values: Mapping[str, object]
    ) -> list[Candidate]:
        async with self._database.connection() as connection:
            cursor = await connection.execute(query, values)
            return [Candidate(*row) for row in await cursor.fetchall()]

    async def _settled(self, values: Mapping[str, object], *, hours: int) -> list[Candidate]:
        async with self._database.long_connection(RECHECK_SECONDS) as connection:
            row = await (await connection.execute(_NOW)).fetchone()
            if row is None:
                raise RuntimeError("the database has no time")
            since = row[0] - timedelta(hours=hours)
            cursor = await connection.execute(SETTLED, {**values, "since": since})
            return [Candidate(*found) for found in await cursor.fetchall()]

    async def _provider(
        self, provider: str, source: BillSource, group: list[Candidate], tally: _Tally
    ) -> None:
        unknown = sum(candidate.state == "unknown" for candidate in group)
        try:
            billed = await source.billed(group)
        except BillUnreachableError as error:
            log.warning("bill_unreachable", provider=provider, error=str(error))
            tally.unreachable.add(provider)
            tally.still_open += unknown
            return
        for candidate in group:
            bill = billed.get(candidate.attempt_id)
            if bill is None:
                tally.still_open += candidate.state == "unknown"
                continue
            try:
                await self._one(candidate, bill, tally)
            except (AuthorityUnavailableError, *REFUSALS) as error:
                tally.still_open += 1  # the next pass finds it as it was
                why = f"{type(error).__name__}: {error}"
                log.warning("attempt_not_reconciled", attempt_id=candidate.attempt_id, error=why)

    async def _one(self, candidate: Candidate, bill: Billed, tally: _Tally) -> None:
        if not bill.priced:
            tally.unpriced += 1
            tally.still_open += candidate.state == "unknown"
            _drift(candidate, await self._known(candidate), None, tally)
            return
        reach("reconcile.before-apply")
        if candidate.state == "settled":
            await self._recheck(candidate, bill, tally)
            return
        result = await self._apply(candidate, bill)
        reach("reconcile.after-apply")
        if result not in ("written", "same"):  # still running, or its month is not here any more
            tally.still_open += candidate.state == "unknown" and result != "kept"
            return
        written = result == "written"
        tally.trued_up += bill.calls > 0 and (written or candidate.state != "not_billed")
        tally.not_billed += candidate.state == "unknown" and bill.calls == 0

    async def _recheck(self, candidate: Candidate, bill: Billed, tally: _Tally) -> None:
        tally.rechecked += 1
        known = await self._known(candidate)
        if bill.calls == 0 and known > 0:
            return  # we saw its usage: a log without it has a hole
        if await self._apply(candidate, bill) != "written":
            return
        tally.drifted += 1
        tally.drift_micro_usd += bill.cost_micro_usd - known
        _drift(candidate, known, bill.cost_micro_usd, tally)

    async def _known(self, candidate: Candidate) -> int:
        async with self._database.connection() as connection:
            cursor = await connection.execute(_SUMS, (candidate.attempt_id, candidate.opened_at))
            row = await cursor.fetchone()
        return 0 if row is None else int(row[0])

    async def _apply(self, candidate: Candidate, bill: Billed) -> str:
        """As ``reconcile_entry`` answers."""
        async with self._database.connection() as connection:
            if candidate.old:
                cursor = await connection.execute(
                    _RECONCILE_OLD,
                    (
                        candidate.attempt_id, bill.input_tokens, bill.output_tokens,
                        bill.cost_micro_usd, bill.outcome, self._replica,
                    ),
                )  # fmt: skip
                row = await cursor.fetchone()
                return "written" if row is not None and row[0] else "same"
            facts = {
                "calls": bill.calls, "input_tokens": bill.input_tokens,
                "output_tokens": bill.output_tokens, "cache_read_tokens": bill.cache_read_tokens,
                "cache_write_tokens": bill.cache_write_tokens,
                "amount_micro_usd": bill.cost_micro_usd, "outcome": bill.outcome,
                "reason": "provider_log",
            }  # fmt: skip
            cursor = await connection.execute(
                _RECONCILE,
                (WRITER, self._replica, candidate.attempt_id, candidate.opened_at, Jsonb(facts)),
            )
            row = await cursor.fetchone()
            return "no_attempt" if row is None else str(row[0])


def _drift(candidate: Candidate, known: int, billed: int | None, tally: _Tally) -> None:
    """Tell of a difference. ``billed`` ``None``: its recorded price cannot be found."""
    if len(tally.drifts) < MAX_DRIFTS:
        tally.drifts.append(
            {
                "attempt_id": candidate.attempt_id,
                "provider": candidate.provider,
                "price_version": candidate.price_version,
                "ledger_micro_usd": known,
                "billed_micro_usd": billed,
            }
        )
    log.error("drift", attempt_id=candidate.attempt_id, provider=candidate.provider)
