"""Posts alerts to the webhooks of the spec, at least once each, until they are heard for a day."""

import asyncio
import json
from collections.abc import Callable, Sequence

import aiohttp
import structlog
from yarl import URL

from terrace_common.governance.alerts import Webhook
from terrace_gateway.crash_points import reach
from terrace_gateway.ending import end_tasks
from terrace_gateway.money.budget_metrics import BudgetMetrics
from terrace_gateway.money.budget_store import CLAIM_SECONDS, BudgetAlert, BudgetStore
from terrace_gateway.turns import Turns

log = structlog.get_logger()

TIMEOUT_SECONDS = 5.0
"""For one post as a whole; shorter than a claim, so that two guards do not post at once."""
LONGEST_WAIT_SECONDS = 300.0
GIVE_UP_SECONDS = 86_400.0
EVERY_SECONDS = 1.0

Failure = str
"""In words that hold no URL, no token and nothing that the receiver sent."""


class CredentialMissingError(Exception):
    """There is no token of that name; the message says no more."""


class AlertWebhooks:
    """One delivery at a time per webhook, so that a slow receiver holds up none but itself.

    A receiver knows repetitions by the header ``idempotency-key``. Redirects are failures.
    """

    def __init__(
        self,
        store: BudgetStore,
        metrics: BudgetMetrics,
        webhooks: Callable[[], Sequence[Webhook]],
        credential: Callable[[str], str],
        *,
        every_seconds: float = EVERY_SECONDS,
        timeout_seconds: float = TIMEOUT_SECONDS,
        first_wait_seconds: float = 1.0,
    ) -> None:
        """``credential`` raises ``CredentialMissingError``."""
        self._store = store
        self._metrics = metrics
        self._webhooks = webhooks
        self._credential = credential
        self._every_seconds = every_seconds
        self._timeout_seconds = timeout_seconds
        self._first_wait_seconds = first_wait_seconds
        self.turns = Turns("alert_webhooks")

    async def run(self) -> None:
        """Deliver until cancelled."""
        posting: dict[str, asyncio.Task[None]] = {}
        async with self._session() as session:
            try:
                while True:
                    for webhook in self._webhooks():
                        running = posting.get(webhook.name)
                        if running is None or running.done():
                            posting[webhook.name] = asyncio.create_task(
                                self._deliver(webhook, session)
                            )
                    await self._give_up()
                    await asyncio.sleep(self._every_seconds)
            finally:
                await end_tasks(posting.values(), every_seconds=1)

    async def _deliver(self, webhook: Webhook, session: aiohttp.ClientSession) -> None:
        """All that is due, until one fails."""
        claim_seconds = self._timeout_seconds + CLAIM_SECONDS
        with self.turns.turn():
            while found := await self._store.next_delivery(webhook.name, claim_seconds):
                alert, attempt = found
                failure = await self._post(webhook, alert, session)
                reach("alerts.after-post")
                if failure is None:
                    self._metrics.delivery(webhook.name, "delivered")
                    await self._store.delivered(alert.alert_id, webhook.name)
                    continue
                self._metrics.delivery(webhook.name, "failed")
                log.warning(
                    "alert_not_delivered", webhook=webhook.name, alert=alert.uid,
                    attempt=attempt, why=failure,
                )  # fmt: skip
                wait = self._first_wait_seconds * 2 ** min(attempt - 1, 20)
                await self._store.failed(
                    alert.alert_id, webhook.name, failure,
                    again_seconds=min(LONGEST_WAIT_SECONDS, wait),
                )  # fmt: skip
                return

    async def _post(
        self, webhook: Webhook, alert: BudgetAlert, session: aiohttp.ClientSession
    ) -> Failure | None:
        body = {"kind": "budget_threshold", **alert.detail()}
        headers = {"content-type": "application/json", "idempotency-key": alert.uid}
        if webhook.token_env is not None:
            try:
                headers["authorization"] = f"Bearer {self._credential(webhook.token_env)}"
            except CredentialMissingError:
                return f"{webhook.token_env} is not set"
        try:
            async with session.post(
                URL(webhook.url), data=json.dumps(body).encode(), headers=headers,
                allow_redirects=False,
            ) as answer:  # fmt: skip
                status = answer.status
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return type(error).__name__
        return None if 200 <= status < 300 else f"status {status}"

    async def _give_up(self) -> None:
        with self.turns.turn():
            for webhook in await self._store.give_up(GIVE_UP_SECONDS):
                self._metrics.delivery(webhook, "given_up")
                log.error("alert_given_up", webhook=webhook)

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._timeout_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
