"""Admin routes of price books and of re-rating."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal

import structlog
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from terrace_common.prices import PriceBook
from terrace_gateway.admin.routing import AdminCall, AdminRefusal, AdminRoute
from terrace_gateway.edge.errors import MODEL_NOT_FOUND, ApiError
from terrace_gateway.prices.rerating import PastAttempt, Rerating, rerate
from terrace_gateway.prices.rerating_store import ReratingStore
from terrace_gateway.prices.store import (
    NoSuchVersionError,
    PriceStore,
    UnreadableBookError,
    VersionTakenError,
)
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

MAX_BOOK_BYTES = 8 * 1024 * 1024
PAGE = 500


class NewBook(BaseModel):
    """A book to put in force."""

    model_config = ConfigDict(extra="forbid")

    book: PriceBook
    reason: str = Field(min_length=1, max_length=512)


class Use(BaseModel):
    """A book that is there already, or ``null`` for the spec's own prices."""

    model_config = ConfigDict(extra="forbid")

    version: str | None
    reason: str = Field(min_length=1, max_length=512)


class Place(BaseModel):
    """Where a page of attempts ended."""

    model_config = ConfigDict(extra="forbid")

    opened_at: AwareDatetime
    attempt_id: str = Field(max_length=128)


class Rerate(BaseModel):
    """Which attempts, at the prices of which book."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    version: str
    since: AwareDatetime
    until: AwareDatetime
    model: str | None = None
    write: bool = False
    """Without it nothing is written: the answer says what would be."""
    reason: str | None = Field(default=None, max_length=512)
    after: Place | None = None


class PriceBooks:
    """Endpoints of price books."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = PriceStore(runtime.database)
        self._past = ReratingStore(runtime.database, replica=runtime.settings.replica)

    async def list_books(self, _: AdminCall) -> dict[str, Any]:
        """Every book, and what is in force."""
        snapshot = self._runtime.policy.current().snapshot
        books = await self._store.list_books()
        used = next((book["version"] for book in books if book["in_force"]), None)
        return {"in_force": used, "spec_price_version": snapshot.price_version, "books": books}

    async def show(self, call: AdminCall) -> dict[str, Any]:
        """One book."""
        return {"book": (await self._find(call.path["version"])).model_dump(mode="json")}

    async def apply(self, call: AdminCall) -> dict[str, Any]:
        """Put a book in force. The same again changes nothing."""
        body = await call.read(NewBook)
        try:
            changed = await self._store.apply(
                body.book, actor=call.actor, reason=body.reason, admission=call.admission
            )
        except VersionTakenError:
            raise AdminRefusal(
                409,
                "version_conflict",
                f"there is another book of version {body.book.version!r}, and a book never"
                " changes: give this one a version of its own",
            ) from None
        return self._changed(body.book.version, changed=changed)

    async def use(self, call: AdminCall) -> dict[str, Any]:
        """Go back to a book, or to the spec's own prices."""
        body = await call.read(Use)
        try:
            changed = await self._store.use(
                body.version, actor=call.actor, reason=body.reason, admission=call.admission
            )
        except NoSuchVersionError:
            raise _no_book() from None
        except UnreadableBookError as error:
            raise _unreadable(error) from None
        return self._changed(body.version, changed=changed)

    async def rerate(self, call: AdminCall) -> dict[str, Any]:
        """A page of past attempts at other prices; ``next`` is where the following one begins."""
        body = await call.read(Rerate)
        if body.write and not body.reason:
            raise invalid("reason is required to write", "reason")
        book = await self._find(body.version)
        snapshot = self._runtime.policy.current().snapshot
        after = None if body.after is None else (body.after.opened_at, body.after.attempt_id)
        attempts = await self._past.page(
            since=body.since, until=body.until, model=body.model, after=after, limit=PAGE
        )

        def price(past: Iterable[PastAttempt]) -> list[tuple[PastAttempt, Rerating | None]]:
            return list(rerate(past, snapshot.governance, book))

        results = price(attempts)
        changed = [one for _, one in results if one is not None and one.delta_micro_usd != 0]
        written = 0
        if body.write and changed:
            changed = await self._past.write(
                [one.attempt for one in changed],
                lambda past: [one for _, one in price(past) if one is not None],
                actor=call.actor,
                reason=body.reason or "",
                admission=call.admission,
            )
            written = len(changed)
            log.info("rerated", version=book.version, written=written)
        last = attempts[-1] if len(attempts) == PAGE else None
        return {
            "version": book.version,
            "attempts": len(attempts),
            "not_priced": sum(one is None for _, one in results),
            "changed": len(changed),
            "written": written,
            "delta_micro_usd": sum(one.delta_micro_usd for one in changed),
            "by_model": _by_model(changed),
            "next": None if last is None else _place(last.opened_at, last.attempt_id),
        }

    async def _find(self, version: str) -> PriceBook:
        try:
            book = await self._store.find(version)
        except UnreadableBookError as error:
            raise _unreadable(error) from None
        if book is None:
            raise _no_book()
        return book

    @staticmethod
    def _changed(version: str | None, *, changed: bool) -> dict[str, Any]:
        if changed:
            log.warning("prices_in_force", version=version)
        state: Literal["applied", "unchanged"] = "applied" if changed else "unchanged"
        return {"in_force": version, "state": state}


def _no_book() -> ApiError:
    return ApiError(MODEL_NOT_FOUND, "there is no such price book", param="version")


def _unreadable(error: UnreadableBookError) -> AdminRefusal:
    return AdminRefusal(409, "price_book_unreadable", str(error))


def _place(opened_at: datetime, attempt_id: str) -> dict[str, object]:
    return {"opened_at": opened_at, "attempt_id": attempt_id}


def _by_model(changed: list[Rerating]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in changed:
        sums[one.attempt.model] = sums.get(one.attempt.model, 0) + one.delta_micro_usd
    return sums


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of price books."""
    books = PriceBooks(runtime)
    return [
        AdminRoute("GET", "/prices", books.list_books, "Every price book, and what is in force.",
                   "viewer", answer="`in_force`, `spec_price_version` and `books`."),
        AdminRoute("GET", "/prices/{version}", books.show, "One price book.", "viewer",
                   answer="`book`."),
        AdminRoute("POST", "/prices", books.apply, "Put a price book in force.", "admin",
                   body=NewBook, answer="`in_force` and `state`.", max_body_bytes=MAX_BOOK_BYTES,
                   changes_policy=True),
        AdminRoute("POST", "/prices/use", books.use, "Go back to a book, or to none.", "admin",
                   body=Use, answer="`in_force` and `state`.", changes_policy=True),
        AdminRoute("POST", "/prices/rerate", books.rerate,
                   "What past attempts would have cost; written with `write`.", "admin",
                   body=Rerate, answer="Counts and sums of one page, and `next`."),
    ]  # fmt: skip
