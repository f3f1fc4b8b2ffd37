"""Where the bill of an attempt is, and whether it is still read there.

An attempt keeps the version of the policy that it was sent by. That version's text says to which
region, with which credentials and at which address; it never changes. What is missing in the log of
another place says nothing.

A cross-region inference profile changes nothing of this: wherever Bedrock answers such a call, it
is logged in the region that was called, the provider's.
https://docs.aws.amazon.com/bedrock/latest/userguide/cross-region-inference.html
"""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import LiteralString

from terrace_common.governance import BedrockProvider, Governance, GovernanceError, load_governance
from terrace_common.governance.catalogue import Provider
from terrace_gateway.database import Database
from terrace_gateway.ledger.bills.bill_sources import Candidate

MAX_VERSIONS = 32
"""So many versions of the policy are looked through for an attempt that does not say its own."""
KEPT = 1000

Place = tuple[str | None, ...]

_TEXT: LiteralString = "SELECT text FROM governance_version WHERE version = %s"
# A guard takes a new version within seconds.
_SINCE: LiteralString = """
SELECT version FROM governance_version WHERE version >= (
    SELECT max(version) FROM governance_version WHERE applied_at < %s - interval '1 minute')
ORDER BY version LIMIT %s
"""
_LOCATION: LiteralString = "SELECT location, since FROM bill_location ORDER BY since DESC LIMIT 1"
# The first one that is known is taken for the one of always.
_MOVE: LiteralString = """
INSERT INTO bill_location (location, since)
SELECT %s, CASE WHEN EXISTS (SELECT FROM bill_location) THEN clock_timestamp()
           ELSE to_timestamp(0) END
ON CONFLICT DO NOTHING
"""


def place_of(provider: Provider) -> Place:
    """What decides in whose books a call is written."""
    if isinstance(provider, BedrockProvider):
        return (provider.region, provider.endpoint, provider.credentials, provider.bill_url)
    return (provider.api_base, provider.api_key_env, provider.bill_url)


class BillPlaces:
    """Reads versions of the policy; none ever changes, so what they say is kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._places: dict[int, dict[str, Place]] = {}

    async def sent_here(
        self, provider: Provider, location: str | None, candidates: Sequence[Candidate]
    ) -> set[str]:
        """Which of the provider's attempts were sent where it is now, and not before their log has
        been read at ``location`` (``None``: the provider's own ``bill_url`` says it).

        Raises ``AuthorityUnavailableError``.
        """
        here = place_of(provider)
        since = None if location is None or not candidates else await self._since(location)
        found: set[str] = set()
        for candidate in candidates:
            if since is not None and candidate.opened_at < since:
                continue
            versions = await self._versions(candidate)
            places = [(await self._read(one)).get(provider.name) for one in versions]
            if places and all(place == here for place in places):
                found.add(candidate.attempt_id)
        return found

    async def _versions(self, candidate: Candidate) -> list[int]:
        """The one that it was sent by, or all that it can have been and all since."""
        if candidate.policy_version is not None:
            return [candidate.policy_version]
        async with self._database.connection() as connection:
            values = (candidate.opened_at, MAX_VERSIONS + 1)
            rows = await (await connection.execute(_SINCE, values)).fetchall()
        return [] if len(rows) > MAX_VERSIONS else [version for (version,) in rows]

    async def _read(self, version: int) -> dict[str, Place]:
        if version not in self._places:
            async with self._database.connection() as connection:
                row = await (await connection.execute(_TEXT, (version,))).fetchone()
            if row is None:
                return {}
            if len(self._places) >= KEPT:
                self._places.clear()
            self._places[version] = await asyncio.to_thread(_places, str(row[0]))
        return self._places[version]

    async def _since(self, location: str) -> datetime:
        """From when on logs have been read there."""
        async with self._database.connection() as connection:
            row = await (await connection.execute(_LOCATION)).fetchone()
            if row is None or row[0] != location:
                await connection.execute(_MOVE, (location,))
                row = await (await connection.execute(_LOCATION)).fetchone()
        if row is None or row[0] != location:  # guards with two settings, at the same moment
            return datetime.max.replace(tzinfo=UTC)
        return row[1]


def _places(text: str) -> dict[str, Place]:
    try:
        spec: Governance = load_governance(text, "governance")
    except GovernanceError:  # of a release that knew other keys
        return {}
    return {provider.name: place_of(provider) for provider in spec.providers}
