"""What the guard's apps share, owned by the process: opened once, closed once."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import psycopg
import structlog

from terrace_common.telemetry import Telemetry
from terrace_gateway.admin.authentication import AdminAuthenticator
from terrace_gateway.authentication.chain import AuthenticatorChain
from terrace_gateway.authentication.tokens import TokenVerifier
from terrace_gateway.calls.kills import kill_by_admission, kill_by_caller_now
from terrace_gateway.calls.running import RunningCall, RunningCalls
from terrace_gateway.capture.writer import CaptureWriter
from terrace_gateway.clock import Clock
from terrace_gateway.database import Database
from terrace_gateway.edge.client import BodyRoom
from terrace_gateway.ending import end_tasks
from terrace_gateway.guardrails.chain import Guardrails
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.ledger.keeper import LedgerKeeper
from terrace_gateway.ledger.opening_index import OpeningIndex
from terrace_gateway.ledger.reaper import LedgerReaper
from terrace_gateway.ledger.shipper import Shipper
from terrace_gateway.matching import Matcher
from terrace_gateway.membership import Membership
from terrace_gateway.metrics import Metrics
from terrace_gateway.money.alert_webhooks import AlertWebhooks
from terrace_gateway.money.budget_alerts import BudgetWatch
from terrace_gateway.money.slice_book import SliceBook
from terrace_gateway.money.slice_reaper import SliceReaper
from terrace_gateway.policy.feed import NoPolicyError, PolicyFeed, Switch
from terrace_gateway.policy.key_use import KeyUse
from terrace_gateway.policy.listener import PolicyListener
from terrace_gateway.policy.quota_watch import UpstreamQuotaWatch
from terrace_gateway.policy.saved import SavedPolicy
from terrace_gateway.policy.seed import DeploymentFile
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.versions import GovernanceVersions
from terrace_gateway.prices import Prices
from terrace_gateway.settings import Secrets, Settings
from terrace_gateway.spool.group_commit import SpoolBrokenError
from terrace_gateway.spool.journal import SpoolJournal
from terrace_gateway.turns import DATABASE_FAILURES, Turns
from terrace_gateway.upstream.bulkhead import Bulkheads
from terrace_gateway.upstream.dispatch import Dispatch
from terrace_gateway.upstream.translator import Translator

log = structlog.get_logger()

PROBE_SECONDS = 0.5
OUTAGE_SECONDS = 0.25


@dataclass
class Runtime:
    """The guard's parts. ``accepting`` turns false when the process is told to stop."""

    settings: Settings
    secrets: Secrets
    clock: Clock
    database: Database
    policy: PolicyFeed
    saved_policy: SavedPolicy | None
    listener: PolicyListener
    versions: GovernanceVersions
    deployment: DeploymentFile
    key_use: KeyUse
    authenticators: AuthenticatorChain
    admin_authenticators: Sequence[AdminAuthenticator]
    tokens: TokenVerifier
    membership: Membership
    slices: SliceBook
    slice_reaper: SliceReaper
    quota_watch: UpstreamQuotaWatch
    budget_watch: BudgetWatch
    alert_webhooks: AlertWebhooks
    journal: SpoolJournal
    shipper: Shipper
    keeper: LedgerKeeper
    opening_index: OpeningIndex
    reaper: LedgerReaper
    prices: Prices
    matcher: Matcher
    guardrail_http: GuardrailHttp
    guardrails: Guardrails
    capture: CaptureWriter
    translator: Translator
    bulkheads: Bulkheads
    upstream: Dispatch
    metrics: Metrics
    telemetry: Telemetry
    body_room: BodyRoom
    running: RunningCalls = field(default_factory=RunningCalls)
    accepting: bool = True
    translator_ready: bool = False
    in_flight: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])
    database_turns: Turns = field(default_factory=lambda: Turns("database"))
    _background: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])
    _cutting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Take the spool, start clients and background work; waits for nothing outside.

        Raises ``SpoolLockedError`` or ``OSError``: the spool cannot be used.
        """
        self.journal.start()
        self.policy.before_change(self._prepare_policy)
        self._restore_policy()
        await self.database.open()
        await self.translator.open()
        await self.guardrail_http.open()
        if self.saved_policy is not None:
            self._background.append(asyncio.create_task(self.saved_policy.run(self.policy)))
        for work in (
            self._keep_database(),
            self._keep_translator(),
            self._cut_in_outages(),
            self.membership.run(),
            self.policy.run(),
            self.listener.run(),
            self.key_use.run(),
            self.shipper.run(),
            self.keeper.run(),
            self.opening_index.run(),
            self.reaper.run(),
            self.slice_reaper.run(),
            self.quota_watch.run(),
            self.budget_watch.run(),
            self.alert_webhooks.run(),
            self.capture.run(),
        ):
            self._background.append(asyncio.create_task(work))

    async def close(self, *, running_seconds: float) -> None:
        """Let running calls end, ship what is spooled, give slices back, and go.

        Calls that do not end are closed as unknown. What cannot be shipped stays in the spool: the
        next start of this replica ships it.
        """
        if self.in_flight:
            await asyncio.wait(self.in_flight, timeout=running_seconds)
        cut = list(self.in_flight)
        await end_tasks(cut, every_seconds=1)
        self.budget_watch.rest()
        self.quota_watch.rest()
        shipped = await self._leave()
        cutting = [] if self._cutting is None else [self._cutting]
        await end_tasks([*self._background, *cutting], every_seconds=1)
        await self.capture.finish()
        await self.slices.close()
        await self.journal.stop()
        await self.upstream.close()
        await self.guardrail_http.close()
        await self.tokens.close()
        await self.translator.close()
        await self.database.close()
        await asyncio.to_thread(self.telemetry.shutdown)
        log.info("stopped", calls_cut=len(cut), spool_shipped=shipped)

    async def _leave(self) -> bool:
        """Everything into the ledger and every slice back. False: some of it stays behind."""
        seconds = self.settings.ship_seconds
        if self.journal.broken is not None:
            return False
        try:
            open_attempts = await self.journal.seal()
            async with asyncio.timeout(seconds):
                shipped = await self.shipper.drain(seconds) and open_attempts == 0
                with contextlib.suppress(*DATABASE_FAILURES):
                    await self.key_use.flush()
                if shipped:
                    await self.slices.give_back_all()
                    whole = self.shipper.is_whole(self.journal.chain.writer)
                    await self.membership.leave(whole=whole)
                    await self.journal.finish()
        except (TimeoutError, SpoolBrokenError):
            return False
        return shipped

    @property
    def turns(self) -> tuple[Turns, ...]:
        """Of all background work that asks the database."""
        return (
            self.database_turns,
            self.membership.turns,
            self.policy.turns,
            self.key_use.turns,
            self.slice_reaper.turns,
            self.quota_watch.turns,
            self.reaper.turns,
            self.budget_watch.turns,
            self.alert_webhooks.turns,
        )

    def failed(self) -> BaseException | None:
        """Why the process must end: background work that ended, or a spool that is broken."""
        if self.journal.broken is not None:
            return RuntimeError(f"the spool is broken: {self.journal.broken}")
        for task in self._background:
            if task.done() and not task.cancelled():
                return task.exception() or RuntimeError("background work ended")
        return None

    def _restore_policy(self) -> None:
        """The last policy of this replica, if it is kept and of this boot of the machine."""
        found = None if self.saved_policy is None else self.saved_policy.load()
        if found is None:
            return
        changes, confirmed_at = found
        try:
            self.policy.restore(changes, confirmed_at=confirmed_at)
        except NoPolicyError as error:
            log.warning("saved_policy_refused", why=str(error))

    def _prepare_policy(self, old: Snapshot | None, new: Snapshot) -> Switch:
        """All of this process that goes by the policy, made ready for ``new``."""
        switches: list[Switch] = []
        another = old is None or old.compiled is not new.compiled
        if old is None or another or old.price_book is not new.price_book:
            prices = Prices(new.price_version, new.price_book)
            switches.append(partial(self.prices.use, new.price_version, new.price_book))
            switches.append(self.matcher.prepare(new.governance, prices))
        if another:
            switches.append(self.upstream.prepare(new.governance))
            switches.append(self.tokens.prepare(new.governance.authentication))
            built = Guardrails.build(new.governance, self.guardrail_http)
            switches.append(partial(self._use_guardrails, built))
        switches.append(partial(self._cut_killed, new))

        def switch() -> None:
            for one in switches:
                one()

        return switch

    def _use_guardrails(self, guardrails: Guardrails) -> None:
        self.guardrails = guardrails

    def _cut_killed(self, new: Snapshot) -> None:
        """By what costs little at once, and by who the callers are now soon after."""
        if self._cutting is not None:
            self._cutting.cancel()
            self._cutting = None
        if new.kills:
            _tell_cut(self.running.cut(lambda call: kill_by_admission(call, new)))
            if len(self.running):
                self._cutting = asyncio.create_task(self._cut_found_anew(new))

    async def _cut_found_anew(self, new: Snapshot) -> None:
        now = self.clock.database_now()
        _tell_cut(await self.running.cut_in_slices(lambda call: kill_by_caller_now(call, new, now)))

    async def _cut_in_outages(self) -> None:
        """A stream goes on for its policy's grace after the last moment for new calls."""
        while True:
            await asyncio.sleep(OUTAGE_SECONDS)
            try:
                in_force = self.policy.current()
            except NoPolicyError:
                continue
            over = in_force.age_seconds - in_force.lease_seconds

            def reason(call: RunningCall, over: float = over) -> str | None:
                policy = call.principal.policy
                grace = policy.stream_grace_seconds
                if policy.outage == "limited":
                    grace += policy.outage_grace_seconds
                return "the budget authority was away for too long" if over > grace else None

            if over > 0:
                self.running.cut(reason)

    async def _keep_database(self) -> None:
        """Until cancelled. Raises what ends the process: ``DatabaseConfigError``, and
        ``psycopg.Error`` of a migration that this database refuses."""
        while True:
            if not self.database.prepared:
                try:
                    await self.database.prepare()
                except (
                    psycopg.OperationalError,
                    psycopg.errors.ReadOnlySqlTransaction,
                    OSError,
                ) as error:
                    log.warning("database_not_there_yet", error=type(error).__name__)
                except (psycopg.InternalError, psycopg.NotSupportedError) as error:
                    self.database_turns.miss(error)
            if self.database.prepared and not self._has_just_beaten():
                with self.database_turns.turn():
                    await self.database.probe()
            self.metrics.database_up.set(self.database.up)
            await asyncio.sleep(PROBE_SECONDS)

    def _has_just_beaten(self) -> bool:
        # A beat writes: it says the same as a probe, and a failed one turns ``up`` by itself.
        beat = self.membership.last_beat
        if beat is None or not self.database.up:
            return False
        return self.clock.monotonic() - beat.sent_at < PROBE_SECONDS

    async def _keep_translator(self) -> None:
        while True:
            self.translator_ready = await self.translator.is_ready()
            self.metrics.translator_up.set(self.translator_ready)
            await asyncio.sleep(PROBE_SECONDS if not self.translator_ready else 2 * PROBE_SECONDS)


def _tell_cut(count: int) -> None:
    if count:
        log.warning("calls_cut", count=count)
