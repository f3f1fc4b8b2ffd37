"""This process among the replicas: a beat renews its lease; its identity is durable before use.

The spool knows an incarnation before a slice is taken under it, so that whatever happens then, the
replay of the spool can give the slice back.
"""

import asyncio

import structlog

from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.crash_points import reach
from terrace_gateway.money.heartbeat import Beat, Heartbeat
from terrace_gateway.money.slice_book import SliceBook
from terrace_gateway.policy.feed import PolicyFeed
from terrace_gateway.policy.store import timeline_number
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.turns import DATABASE_FAILURES, Turns

log = structlog.get_logger()


class Membership:
    """Brings beats to the policy feed and to the slices."""

    def __init__(
        self, heartbeat: Heartbeat, journal: SpoolJournal, slices: SliceBook, policy: PolicyFeed
    ) -> None:
        self._heartbeat = heartbeat
        self._journal = journal
        self._slices = slices
        self._policy = policy
        self._acting: int | None = None
        self._entering: asyncio.Task[None] | None = None
        heartbeat.listeners.append(self._heard)

    @property
    def turns(self) -> Turns:
        """The beats."""
        return self._heartbeat.turns

    @property
    def last_beat(self) -> Beat | None:
        """The last answer of the database."""
        return self._heartbeat.last

    @property
    def entered(self) -> bool:
        """This process has an identity that slices can be held under."""
        return self._acting is not None

    async def run(self) -> None:
        """Beat until cancelled."""
        await self._heartbeat.run()

    async def close_incarnation(self, incarnation: int) -> None:
        """Everything that this incarnation spooled is in the ledger: it gets its credit.

        Raises ``AuthorityUnavailableError``, ``psycopg.Error``.
        """
        await self._heartbeat.close(incarnation)
        log.info("incarnation_closed", incarnation=incarnation)

    async def leave(self, *, whole: bool) -> None:
        """The end of this process, once everything is shipped. Best effort: the next start of the
        replica does the same. Not ``whole``: a record was lost, and what it may have spent stays
        forfeited until an operator knows better."""
        await self._heartbeat.leave()
        if self._acting is None:
            return
        if not whole:
            log.error("incarnation_forfeited", incarnation=self._acting)
            return
        try:
            await self.close_incarnation(self._acting)
        except DATABASE_FAILURES as error:
            log.warning(
                "incarnation_not_closed", incarnation=self._acting, error=type(error).__name__
            )

    def _heard(self, beat: Beat) -> None:
        self._policy.hear(beat.policy_epoch, beat.sent_at, timeline_number(beat.timeline))
        if beat.incarnation == self._acting:
            self._slices.hear(beat)
        elif self._entering is None or self._entering.done():
            self._entering = asyncio.create_task(self._enter(beat))

    async def _enter(self, beat: Beat) -> None:
        try:
            await self._journal.act_for(beat.incarnation)
        except AuthorityUnavailableError as error:
            log.warning("incarnation_not_entered", error=str(error))
            return
        reach("membership.after-entering")
        self._acting = beat.incarnation
        self._slices.hear(beat)
