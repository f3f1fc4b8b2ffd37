"""Keeps the policy in force: hears of a new epoch, loads what changed, counts the policy lease.

The lease runs from the *sending* of the question whose answer confirmed the snapshot's epoch, on a
clock that runs during suspend. A notification only makes the next question come sooner: what
nobody notified is found by the poll.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import psycopg
import structlog

from terrace_common.governance import GovernanceError
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.clock import Clock
from terrace_gateway.policy.deployed import Deployed
from terrace_gateway.policy.lease import InForce
from terrace_gateway.policy.records import Changes
from terrace_gateway.policy.restricts import what_restricts
from terrace_gateway.policy.snapshot import Snapshot, first_snapshot, next_snapshot
from terrace_gateway.policy.store import EVERYTHING, Head
from terrace_gateway.policy.texts import Texts
from terrace_gateway.turns import Turns

log = structlog.get_logger()

LEASE_SECONDS = 1.0
POLL_SECONDS = 0.25
RETRY_SECONDS = 0.25
CONFIRM_SECONDS = 0.5
NOT_IN_FORCE = "policy_not_in_force"
"""In the log, with the reason."""
MANY_ROWS = 500  # from here on a snapshot is made in a thread, so that calls go on

Switch = Callable[[], None]
Prepare = Callable[[Snapshot | None, Snapshot], Switch]
"""Of the policy in force and the one to come: builds all that can fail, maybe in a thread beside
running calls, and changes nothing. The switch that it returns does, without waiting or failing."""


class NoPolicyError(AuthorityUnavailableError):
    """There is no governance version that this guard could go by."""


_TOLD = (GovernanceError, NoPolicyError)


class ChangeSource(Protocol):
    """Where changes are read: ``PolicyStore``, or a test's own."""

    async def head(self) -> Head:
        """Epoch and time, in one round trip."""
        ...

    async def changes(self, since: int) -> Changes:
        """All rows newer than ``since``."""
        ...


class PolicyFeed:
    """The policy in force in this process.

    ``seed`` is awaited once before the first load, and again until it succeeds.
    """

    def __init__(
        self,
        store: ChangeSource,
        clock: Clock,
        deployed: Deployed,
        *,
        lease_seconds: float = LEASE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        seed: Callable[[], Awaitable[None]] | None = None,
        texts: Texts | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._deployed = deployed
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds
        self._seed = seed
        self._texts = texts or Texts()
        self._snapshot: Snapshot | None = None
        self._confirmed_at = float("-inf")
        self._answered_at = float("-inf")  # of the last question, whatever the answer
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._turn = asyncio.Event()  # of this turn of ``run``: set when it was answered or failed
        self._away = False  # the last question got no answer
        self._preparing: list[Prepare] = []
        self._loaded = False  # from the database, in this process
        self.turns = Turns("policy")
        self.problem: str | None = None
        """Why the newest version is not in force here; ``None``: it is."""

    def current(self) -> InForce:
        """The policy in force and its age. Raises ``NoPolicyError``."""
        if self._snapshot is None:
            raise NoPolicyError(self.problem or "no governance version is loaded yet")
        age = self._clock.monotonic() - self._confirmed_at
        return InForce(self._snapshot, age, self._lease_seconds)

    async def confirm(self) -> InForce:
        """The policy in force; one that is overdue is asked for first, for a short time.

        A process that was busy or stopped is late with its questions: that is no outage, and what
        changed meanwhile must hold. Once a question got no answer nobody waits here any more,
        until one does. Raises ``NoPolicyError``.
        """
        found = self.current()
        if found.fresh or self._away:
            return found
        turn = self._turn
        self.wake()
        try:
            async with asyncio.timeout(CONFIRM_SECONDS):
                await turn.wait()
        except TimeoutError:
            self._away = True
        return self.current()

    @property
    def ready(self) -> bool:
        """There is a snapshot."""
        return self._snapshot is not None

    def before_change(self, prepare: Prepare) -> None:
        """Have ``prepare`` ready everything for each new snapshot; one that it cannot be done for
        does not come into force."""
        self._preparing.append(prepare)

    def restore(self, changes: Changes, *, confirmed_at: float) -> None:
        """Begin with rows from elsewhere, confirmed at ``confirmed_at`` (monotonic).

        Raises ``NoPolicyError`` if they cannot be used.
        """
        if self._snapshot is None:
            try:
                self._put(*self._build(changes))
            except Exception as error:
                raise NoPolicyError(_reason(error)) from error
            self._confirmed_at = confirmed_at

    def hear(self, epoch: int, sent_at: float, timeline: int | None = None) -> None:
        """The database's epoch, from an answer to what was sent at ``sent_at`` (monotonic)."""
        known = self._snapshot
        if sent_at <= self._answered_at:
            return  # an answer that was overtaken
        if (
            known is not None
            and self._loaded
            and self.problem is None
            and known.epoch == epoch
            and timeline in (None, known.timeline)
        ):
            self._answered_at = self._confirmed_at = sent_at
            self._away = False
        else:
            self.wake()

    def wake(self) -> None:
        """Ask the database soon."""
        self._wake.set()

    async def refresh(self) -> None:
        """Return once a question that was sent after this call is answered and applied.

        Calls at the same time share a question. Raises ``AuthorityUnavailableError``.
        """
        began = self._clock.monotonic()
        async with self._lock:
            if self._answered_at >= began and self._loaded:
                return
            try:
                await self._ask()
            except psycopg.Error as error:
                self.turns.miss(error)
                raise AuthorityUnavailableError("the database answered with an error") from error
            except AuthorityUnavailableError as error:
                if not isinstance(error, NoPolicyError):
                    self.turns.miss(error)
                raise
            self.turns.done()

    async def run(self) -> None:
        """Follow the database until cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._poll_seconds)
            woken = self._wake.is_set()
            self._wake.clear()
            age = self._clock.monotonic() - self._answered_at
            if not woken and age < self._poll_seconds:
                continue  # heartbeats do the asking
            self._away = not await self._turned()
            if self._away:
                await asyncio.sleep(RETRY_SECONDS)

    async def _turned(self) -> bool:
        try:
            await self.refresh()
        except AuthorityUnavailableError:
            return False
        except Exception:
            log.exception("policy_not_loaded")
            return False
        finally:
            turn, self._turn = self._turn, asyncio.Event()
            turn.set()
        return True

    async def _ask(self) -> None:
        if self._seed is not None:
            await self._seed()
            self._seed = None
        sent_at = self._clock.monotonic()
        head = await self._store.head()
        self._clock.hear(head.now, sent_at=sent_at)
        known, since = self._snapshot, EVERYTHING
        if known is not None and self._loaded:
            same = head.epoch == known.epoch and head.timeline == known.timeline
            if same and self.problem is None:
                self._answered_at = self._confirmed_at = sent_at
                return
            # A database that went back, or another history, shares nothing with what we know.
            if head.epoch >= known.epoch and head.timeline == known.timeline:
                since = known.epoch
        await self._apply(await self._store.changes(since))
        self._loaded = True
        self._answered_at = self._confirmed_at = sent_at

    async def _apply(self, changes: Changes) -> None:
        try:
            rows: Sequence[Sequence[object]] = (changes.keys, changes.caps, changes.secrets)
            large = changes.version is not None or changes.price_book is not None
            if large or sum(map(len, rows)) > MANY_ROWS:
                snapshot, switches = await asyncio.to_thread(self._build, changes)
            else:
                snapshot, switches = self._build(changes)
            self._put(snapshot, switches)
        except Exception as error:  # whatever it is: what cannot be built is not in force
            self.problem = self._problem(error)
            self._take_what_restricts(changes)
            raise NoPolicyError(self.problem) from None
        self.problem = None

    def _problem(self, error: Exception) -> str:
        """In words, and in the log once. The lease ends by itself: a guard that cannot follow must
        not go on."""
        reason = _reason(error)
        problem = f"the newest governance version cannot be used: {reason}"
        if self.problem != problem:
            defect = None if isinstance(error, _TOLD) else error
            log.error(NOT_IN_FORCE, error=reason, exc_info=defect)
        return problem

    def _take_what_restricts(self, changes: Changes) -> None:
        # It holds all the same while ``limited`` lasts, and nothing else of the change does.
        old = self._snapshot
        if old is None:
            return
        made = next_snapshot(old, what_restricts(old, changes), old.compiled, old.undeployed)
        if (made.kills, made.keys, made.secrets) != (old.kills, old.keys, old.secrets):
            self._put(made, self._prepared(made))

    def _build(self, changes: Changes) -> tuple[Snapshot, list[Switch]]:
        snapshot = self._make(changes)
        return snapshot, self._prepared(snapshot)

    def _prepared(self, snapshot: Snapshot) -> list[Switch]:
        return [prepare(self._snapshot, snapshot) for prepare in self._preparing]

    def _make(self, changes: Changes) -> Snapshot:
        old, book = self._snapshot, changes.price_book
        if book is not None and book.unusable is not None:
            raise NoPolicyError(book.unusable)
        if changes.version is None:
            if old is None or changes.since == EVERYTHING:
                raise NoPolicyError("the database has no governance version")
            return next_snapshot(old, changes, old.compiled, old.undeployed)
        if old is not None and old.digest == changes.version.digest:
            compiled, undeployed = old.compiled, old.undeployed
        else:
            compiled = self._texts.compile(changes.version.text)
            undeployed = frozenset(self._deployed.missing(compiled.spec))
        if old is None or changes.since == EVERYTHING:
            return first_snapshot(changes, compiled, undeployed)
        return next_snapshot(old, changes, compiled, undeployed)

    def _put(self, snapshot: Snapshot, switches: Sequence[Switch]) -> None:
        """All in one step of the event loop. The snapshot comes last: nothing is confirmed before
        everything goes by it."""
        for switch in switches:
            switch()
        old, self._snapshot = self._snapshot, snapshot
        if old is None or old.version != snapshot.version:
            log.info("policy_in_force", version=snapshot.version, epoch=snapshot.epoch)


def _reason(error: Exception) -> str:
    """For people. The text of an error that nobody foresaw may hold what is not to be shown."""
    return str(error) if isinstance(error, _TOLD) else f"a defect of ours ({type(error).__name__})"
