"""What a holder of slices says to the authority and hears from it; the Postgres form of it.

All amounts are running totals per slice, so a message that arrives twice or late does nothing.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.crash_points import reach
from terrace_gateway.database import Database

_GRANT = "SELECT grant_slices(%s, %s, %s, %s)"
_RETURN = "SELECT return_slices(%s, %s, %s, %s)"
_DECLARE = "SELECT declare_slices(%s, %s, %s, %s)"


class MessageLostError(AuthorityUnavailableError):
    """No answer came. ``ambiguous``: the message may have taken effect, now or later."""

    def __init__(self, message: str, *, ambiguous: bool) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request needs of one cap."""

    cap_id: int
    counter_id: int
    """Of the slice that the holder has; 0: none."""
    granted: int
    """As the holder knows it."""
    take: int
    """What the holder has set aside of its slice for this request."""
    short: int
    """What is missing."""
    wish: int
    """What it would like besides, because it expects more requests."""


@dataclass(frozen=True, slots=True)
class Need:
    """One request. ``since``: the ``at`` of its first refusal, if it is asked again."""

    asks: Sequence[Ask]
    since: float | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """On one request. ``cap_id`` and what follows tell of the cap that refused it."""

    granted: bool
    over: tuple[int, ...] = ()
    """Caps in mode ``audit`` that would have refused."""
    cap_id: int = 0
    known: bool = True
    """False: the database has no cap ``cap_id``."""
    remaining: int = 0
    retry_after_seconds: int | None = None
    idle_elsewhere: bool = False
    """Other holders may have idle amounts; they have been asked for them."""
    at: float = 0.0
    """When, in the database's seconds."""


@dataclass(frozen=True, slots=True)
class SliceState:
    """A slice as the database has it."""

    cap_id: int
    counter_id: int
    granted: int
    returned: int
    seconds_left: float | None
    """Until its window ends; ``None``: it has no end."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``verdicts`` are in the order of the requests, and empty unless ``state`` is ``done``."""

    state: Literal["done", "repeat", "ended", "suspended"]
    verdicts: tuple[Verdict, ...] = ()
    slices: tuple[SliceState, ...] = ()


class SliceAuthority(Protocol):
    """Grants slices. Every method raises ``MessageLostError``."""

    async def grant(
        self,
        incarnation: int,
        sequence: int,
        caps: Sequence[int],
        needs: Sequence[Need],
    ) -> Answer:
        """Each request gets all it needs or nothing, all in one transaction."""
        ...

    async def give_back(
        self,
        incarnation: int,
        counters: Sequence[int],
        returned: Sequence[int],
        as_of: datetime | None,
    ) -> None:
        """Running totals of what was returned. Nothing is idle there as the holder saw it after
        ``as_of``, the database's time of its last beat."""
        ...

    async def declare(
        self,
        incarnation: int,
        counters: Sequence[int],
        granted: Sequence[int],
        returned: Sequence[int],
    ) -> bool:
        """Everything that is held. False: the incarnation has ended."""
        ...


class PostgresSlices(SliceAuthority):
    """See ``migrations/0006_slices.sql``: the rules are there."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def grant(
        self,
        incarnation: int,
        sequence: int,
        caps: Sequence[int],
        needs: Sequence[Need],
    ) -> Answer:
        """One round trip."""
        body = json.dumps(
            [
                {
                    "since": need.since,
                    "asks": [
                        [a.cap_id, a.counter_id, a.granted, a.take, a.short, a.wish]
                        for a in need.asks
                    ],
                }
                for need in needs
            ]
        )
        reach("slices.before-grant")
        found = await self._call(_GRANT, (incarnation, sequence, list(caps), body))
        reach("slices.after-grant")
        return _answer(found)

    async def give_back(
        self,
        incarnation: int,
        counters: Sequence[int],
        returned: Sequence[int],
        as_of: datetime | None,
    ) -> None:
        """One round trip."""
        reach("slices.before-return")
        await self._call(_RETURN, (incarnation, list(counters), list(returned), as_of))
        reach("slices.after-return")

    async def declare(
        self,
        incarnation: int,
        counters: Sequence[int],
        granted: Sequence[int],
        returned: Sequence[int],
    ) -> bool:
        """One round trip."""
        parameters = (incarnation, list(counters), list(granted), list(returned))
        return bool(await self._call(_DECLARE, parameters))

    async def _call(self, query: str, parameters: tuple[object, ...]) -> Any:
        try:
            async with self._database.connection() as connection:
                cursor = await connection.execute(query.encode(), parameters, prepare=True)
                row = await cursor.fetchone()
        except AuthorityUnavailableError as error:
            ambiguous = bool(getattr(error, "ambiguous", True))
            raise MessageLostError(str(error), ambiguous=ambiguous) from error
        return None if row is None else row[0]


def _answer(found: Any) -> Answer:
    return Answer(
        state=found["state"],
        verdicts=tuple(_verdict(item) for item in found.get("verdicts", ())),
        slices=tuple(SliceState(*item) for item in found.get("slices", ())),
    )


def _verdict(item: Any) -> Verdict:
    if item["granted"]:
        return Verdict(granted=True, over=tuple(item["over"]))
    if "unknown_cap" in item:
        return Verdict(granted=False, cap_id=item["unknown_cap"], known=False)
    return Verdict(
        granted=False,
        cap_id=item["cap"],
        remaining=item["remaining"],
        retry_after_seconds=item["retry_after"],
        idle_elsewhere=item["idle_elsewhere"],
        at=item["at"],
    )
