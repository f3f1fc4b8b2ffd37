"""Admin routes of the books: spend, ledger, audit, chains, reconciliation, export."""

import asyncio
from datetime import date
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from terrace_gateway.admin.audit import record
from terrace_gateway.admin.routing import AdminCall, AdminRoute, Query
from terrace_gateway.edge.errors import INVALID_REQUEST, UPSTREAM_ERROR, ApiError
from terrace_gateway.ledger.bills.bill_places import BillPlaces
from terrace_gateway.ledger.bills.log_sources import LogSources
from terrace_gateway.ledger.bills.reconcile import Reconciler
from terrace_gateway.ledger.bills.recorded_prices import RecordedPrices
from terrace_gateway.ledger.books import KINDS, MONEY_KINDS, SPEND_COLUMNS, BookStore
from terrace_gateway.ledger.chains.anchors import AnchorStore
from terrace_gateway.ledger.chains.signing import read_public_keys, read_signer
from terrace_gateway.ledger.chains.verify import LedgerVerifier, Verification
from terrace_gateway.ledger.exports.export import ExportedDay, LedgerExport
from terrace_gateway.ledger.exports.parts import ExportUnavailableError
from terrace_gateway.ledger.exports.retention import Dropped, Retention
from terrace_gateway.ledger.object_store import ObjectStoreError, open_objects
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

MAX_PAGE = 1000
FRESH_SECONDS = 1.0
MAX_RECHECK_HOURS = 24 * 31


class Reconciliation(BaseModel):
    """Body of ``POST /admin/v1/reconcile``."""

    model_config = ConfigDict(extra="forbid")

    recheck_hours: int = Field(default=0, ge=0, le=MAX_RECHECK_HOURS, strict=True)
    """Also compare settled attempts of so many hours with the providers' logs."""


class VerifyOrder(BaseModel):
    """Body of ``POST /admin/v1/audit/verify``."""

    model_config = ConfigDict(extra="forbid")

    writer: str | None = Field(default=None, max_length=128)
    """Only this chain."""


class ExportOrder(BaseModel):
    """Body of ``POST /admin/v1/ledger/export``."""

    model_config = ConfigDict(extra="forbid")

    keep_months: int | None = Field(default=None, ge=1, le=1200, strict=True)
    """Then drop exported months but for so many before the present one."""
    settle_unknown: bool = Field(default=False, strict=True)
    """Unknown attempts of months that are to be dropped count as their reservation for good."""

    @model_validator(mode="after")
    def _of_months(self) -> "ExportOrder":
        if self.settle_unknown and self.keep_months is None:
            raise ValueError("settle_unknown needs keep_months")
        return self


class Books:
    """Endpoints of the books."""

    def __init__(self, runtime: Runtime) -> None:
        settings = runtime.settings
        self._database = runtime.database
        self._shipper = runtime.shipper
        self._store = BookStore(runtime.database)
        self._keeper = runtime.keeper
        self._metrics = runtime.metrics
        self._clock = runtime.clock
        self._export_location = settings.export_location
        self._verifying = asyncio.Lock()
        self._exporting = asyncio.Lock()
        self._retention = Retention(runtime.database)
        sources = LogSources(
            lambda: runtime.policy.current().snapshot.governance,
            RecordedPrices(runtime.database),
            BillPlaces(runtime.database),
            bedrock_log=settings.bedrock_log_location,
            grace_seconds=settings.reconcile_grace_seconds,
            bedrock_grace_seconds=settings.bedrock_log_grace_seconds,
        )
        self._reconciler = Reconciler(
            runtime.database, sources.sources, replica=settings.replica, reap=(runtime.reaper.reap,)
        )
        anchors = None
        if settings.anchor_location is not None:
            anchors = AnchorStore(open_objects(settings.anchor_location))
        signing = settings.ledger_signing_key_file
        publics = read_public_keys(settings.ledger_old_public_keys)
        if signing is not None:
            publics = (read_signer(signing).public, *publics)
        exports = None
        if settings.export_location is not None:
            exports = open_objects(settings.export_location)
        self._verifier = LedgerVerifier(
            runtime.database, store=anchors, public_keys=publics, exports=exports
        )

    async def _own_entries(self) -> None:
        """Who has seen the end of an answer from this replica finds its entry; of others within the
        moment that their shippers gather."""
        await self._shipper.drain(FRESH_SECONDS)

    async def spend(self, call: AdminCall) -> dict[str, Any]:
        """Sums of the ledger."""
        await self._own_entries()
        by = call.text("by") or "team"
        if by not in SPEND_COLUMNS:
            raise invalid(f"by must be one of {', '.join(SPEND_COLUMNS)}", "by")
        since = call.text("since")
        if since is not None:
            try:
                since = date.fromisoformat(since).isoformat()
            except ValueError:
                raise invalid("since must be a day such as 2026-11-30", "since") from None
        rows = await self._store.spend(by, since=since or "-infinity")
        return {
            "by": by,
            "rows": rows,
            "total_micro_usd": sum(row["settled_micro_usd"] for row in rows),
            "outstanding_micro_usd": sum(row["outstanding_micro_usd"] for row in rows),
        }

    async def ledger(self, call: AdminCall) -> dict[str, Any]:
        """A page of entries; ``next`` is the cursor of the following page."""
        await self._own_entries()
        after = call.number("after", default=0, low=0, high=2**62)
        limit = call.number("limit", default=100, low=1, high=MAX_PAGE)
        # Decisions only when they are asked for: a client of the release before adds rows up.
        kind = call.text("kind")
        kinds: list[str] = list(MONEY_KINDS) if kind is None else kind.split(",")
        if not set(kinds) <= set(KINDS):
            raise invalid(f"kind must be of {', '.join(KINDS)}", "kind")
        rows = await self._store.entries(
            after=after,
            limit=limit + 1,
            key_id=call.text("key_id"),
            attempt_id=call.text("attempt_id"),
            kinds=kinds,
        )
        page = rows[:limit]
        return {"entries": page, "next": page[-1]["entry_id"] if len(rows) > limit else None}

    async def reconcile(self, call: AdminCall) -> dict[str, Any]:
        """Read the providers' logs and correct what they know better."""
        await self._own_entries()
        body = await call.read(Reconciliation)
        result = await self._reconciler.reconcile(recheck_hours=body.recheck_hours)
        self._metrics.corrections.inc(result["trued_up"] + result["not_billed"] + result["drifted"])
        async with self._database.connection() as connection, connection.transaction():
            await record(
                connection, actor=call.actor, action="reconcile", subject="ledger", detail=result
            )
        return result

    async def export(self, call: AdminCall) -> dict[str, Any]:
        """Write the days that are over, then drop months that nobody wants to keep here."""
        body = await call.read(ExportOrder)
        if self._export_location is None:
            raise ApiError(INVALID_REQUEST, "no export_location is set for this guard")
        async with self._exporting:
            await call.admission.renew()
            export = LedgerExport(self._database, open_objects(self._export_location))
            try:
                days = await self._export_days(export, call.actor)
                gone, settled = Dropped(), 0
                if body.keep_months is not None:
                    await call.admission.renew()
                    if body.settle_unknown:
                        settled = await self._retention.settle_unknown(
                            body.keep_months, actor=call.actor
                        )
                    months = await self._retention.old_months(body.keep_months)
                    if await self._forget_lost(export, months):
                        days += await self._export_days(export, call.actor)
                    gone = await self._retention.drop(months, actor=call.actor)
            except ExportUnavailableError as error:
                raise ApiError(INVALID_REQUEST, str(error)) from None
            except ObjectStoreError as error:
                raise ApiError(UPSTREAM_ERROR, f"the place of exports: {error}") from None
        return {
            "exported": [_day_document(day) for day in days],
            "settled_unknown": settled,
            "dropped": gone.dropped,
            "kept": gone.kept,
        }

    async def _forget_lost(self, export: LedgerExport, months: list[str]) -> bool:
        lost = False
        for month in months:
            if await self._retention.needed(month) is None:
                lost = bool(await export.forget_lost(month)) or lost
        return lost

    async def _export_days(self, export: LedgerExport, actor: str) -> list[ExportedDay]:
        """Also if it breaks off, the audit record has what was written."""
        days: list[ExportedDay] = []
        try:
            async for day in export.days(before=self._clock.database_now()):
                days.append(day)
        finally:
            if days:
                detail = {"exported": [_day_document(day) for day in days]}
                async with self._database.connection() as connection, connection.transaction():
                    await record(
                        connection, actor=actor, action="ledger.export", subject="ledger",
                        detail=detail,
                    )  # fmt: skip
        return days

    async def audit(self, call: AdminCall) -> dict[str, Any]:
        """A page of administrative changes."""
        after = call.number("after", default=0, low=0, high=2**62)
        limit = call.number("limit", default=100, low=1, high=MAX_PAGE)
        rows = await self._store.audit(after=after, limit=limit + 1)
        page = rows[:limit]
        return {"changes": page, "next": page[-1]["audit_id"] if len(rows) > limit else None}

    async def chains(self, call: AdminCall) -> dict[str, Any]:
        """A page of writers."""
        limit = call.number("limit", default=100, low=1, high=MAX_PAGE)
        rows = await self._store.chains(after=call.text("after") or "", limit=limit + 1)
        page = rows[:limit]
        return {"chains": page, "next": page[-1]["writer"] if len(rows) > limit else None}

    async def verify(self, call: AdminCall) -> dict[str, Any]:
        """Check every chain; one verification at a time."""
        body = await call.read(VerifyOrder)
        async with self._verifying:
            return verification_document(await self._verifier.verify(body.writer))

    async def anchor(self, call: AdminCall) -> dict[str, Any]:
        """Anchor what moved now, instead of within the minute."""
        del call
        return {"anchored": await self._keeper.anchor()}


def _day_document(day: ExportedDay) -> dict[str, Any]:
    return {"day": day.day.isoformat(), "rows": day.rows, "manifest": day.manifest}


def verification_document(result: Verification) -> dict[str, Any]:
    """As the API and the offline verifier answer."""
    return {
        "whole": result.whole,
        "chains": result.chains,
        "entries": result.entries,
        "anchors": result.anchors,
        "unsigned_anchors": result.unsigned_anchors,
        "findings": [
            {
                "kind": finding.kind,
                "writer": finding.writer,
                "seq": finding.seq,
                "text": finding.text,
            }
            for finding in result.findings
        ],
        "more_findings": result.more,
    }


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of the books."""
    books = Books(runtime)
    paging = Query("limit", f"At most so many, up to {MAX_PAGE}.", "integer")
    after = Query("after", "The `next` of the page before.", "integer")
    return [
        AdminRoute("GET", "/spend", books.spend, "Sums of the ledger.", "viewer",
                   query=(Query("by", f"One of {', '.join(SPEND_COLUMNS)}."),
                          Query("since", "The first day (UTC).")),
                   answer="Rows and totals."),
        AdminRoute("GET", "/ledger", books.ledger, "Entries by id.", "auditor",
                   query=(after, paging, Query("key_id", "Only entries of this key."),
                          Query("attempt_id", "Only entries of this attempt."),
                          Query("kind", f"Some of {', '.join(KINDS)}; all but decisions if left"
                                " out.")),
                   answer="A page: `entries` and `next`."),
        AdminRoute("POST", "/reconcile", books.reconcile,
                   "Correct attempts from the providers' own logs.", "admin",
                   body=Reconciliation, answer="How many were checked and corrected."),
        AdminRoute("POST", "/ledger/export", books.export,
                   "Export days that are over; drop old months that are exported.", "admin",
                   body=ExportOrder,
                   answer="Days written, months dropped, and why others were `kept`."),
        AdminRoute("GET", "/audit", books.audit, "Administrative changes by id.", "auditor",
                   query=(after, paging), answer="A page: `changes` and `next`."),
        AdminRoute("GET", "/audit/chains", books.chains, "The ledger's writers.", "auditor",
                   query=(Query("after", "The `next` of the page before."), paging),
                   answer="A page: `chains` and `next`."),
        AdminRoute("POST", "/audit/verify", books.verify,
                   "Check that no entry was changed, dropped, added or moved.", "auditor",
                   body=VerifyOrder, answer="`whole`, and what was found."),
        AdminRoute("POST", "/audit/anchor", books.anchor, "Anchor the chains' heads now.", "admin",
                   answer="How many heads were anchored."),
    ]  # fmt: skip
