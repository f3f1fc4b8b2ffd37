"""Captures on their way to the database: bounded, beside the calls, redacted first."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import psycopg
import structlog

from terrace_common.governance.guardrails import DEFAULT_PERSONAL_DATA
from terrace_gateway.calls.ports import AuthorityUnavailableError
from terrace_gateway.capture.cipher import Sealer
from terrace_gateway.capture.key_wrapping import KeyWrappingError
from terrace_gateway.capture.record import CapturedCall, bounded
from terrace_gateway.capture.store import CaptureStore, forget_ended
from terrace_gateway.database import Database
from terrace_gateway.guardrails.local import masked_texts
from terrace_gateway.guardrails.personal_rules import personal_rules
from terrace_gateway.guardrails.port import GuardrailFailedError
from terrace_gateway.guardrails.scan import RuleSet
from terrace_gateway.guardrails.secret_rules import secret_rules

log = structlog.get_logger()

MAX_WAITING = 512
MAX_WAITING_CHARACTERS = 16 * 1024 * 1024
RETRY_SECONDS = 1.0
FORGET_SECONDS = 600.0
FINISH_SECONDS = 3.0

DropReason = Literal["full", "no_key", "redaction", "failed"]
Result = Literal["stored", "full", "no_key", "redaction", "failed"]


class CaptureWriter:
    """Takes captures without waiting; redacts, encrypts and stores them one after the other.

    Nothing is stored that was not redacted and encrypted: without a key, everything is dropped.
    What has ended is forgotten in any case.
    """

    def __init__(
        self,
        database: Database,
        cipher: Sealer | None,
        *,
        told: Callable[[Result], object] | None = None,
    ) -> None:
        """``told`` hears what became of each capture."""
        self._database = database
        self.store = None if cipher is None else CaptureStore(database, cipher)
        self.results: Counter[Result] = Counter()
        self._told = told
        self._waiting: deque[CapturedCall] = deque()
        self._characters = 0
        self._news = asyncio.Event()
        self._closing = False
        self._rules: RuleSet | None = None

    def offer(self, call: CapturedCall) -> bool:
        """Take a call, now; ``False``: dropped and counted."""
        if self.store is None:
            self._dropped("no_key", call)
            return False
        call = bounded(call)
        if (
            len(self._waiting) >= MAX_WAITING
            or self._characters + call.size > MAX_WAITING_CHARACTERS
        ):
            self._dropped("full", call)
            return False
        self._waiting.append(call)
        self._characters += call.size
        self._news.set()
        return True

    async def run(self) -> None:
        """Store what comes, and forget what has ended; until cancelled."""
        forgetting = asyncio.create_task(self._forget())
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                await self._drain()
        finally:
            forgetting.cancel()
            await asyncio.gather(forgetting, return_exceptions=True)

    async def finish(self, seconds: float = FINISH_SECONDS) -> int:
        """At the end, after ``run`` was cancelled: store what waits. How many are left and lost."""
        self._closing = True
        try:
            async with asyncio.timeout(seconds):
                await self._drain()
        except TimeoutError:
            pass
        left = len(self._waiting)
        for call in self._waiting:
            self._dropped("failed", call)
        self._waiting.clear()
        return left

    async def _drain(self) -> None:
        while self._waiting and self.store is not None:
            call = self._waiting[0]
            try:
                await self.store.write(await self._redacted(call))
                self._tell("stored")
            except AuthorityUnavailableError:
                if self._closing:
                    return
                await asyncio.sleep(RETRY_SECONDS)
                continue
            except GuardrailFailedError:
                self._dropped("redaction", call)
            except (KeyWrappingError, psycopg.Error) as error:
                self._dropped("failed", call, error)
            # It was still the first: only this task takes from the left.
            self._waiting.popleft()
            self._characters -= call.size

    async def _redacted(self, call: CapturedCall) -> CapturedCall:
        rules = self._rules
        if rules is None:
            rules = self._rules = RuleSet(
                [*secret_rules(None), *personal_rules(DEFAULT_PERSONAL_DATA, phone_regions=())]
            )
        found: dict[str, None] = {}
        texts = await masked_texts(rules, call.texts, found)
        answers = await masked_texts(rules, call.answer_texts, found)
        return replace(call, texts=texts, answer_texts=answers)

    async def _forget(self) -> None:
        while True:
            try:
                dropped = await forget_ended(self._database)
                if dropped:
                    log.info("captures_forgotten", days=dropped)
            except (AuthorityUnavailableError, psycopg.Error) as error:
                log.warning("captures_not_forgotten", error=type(error).__name__)
            await asyncio.sleep(FORGET_SECONDS)

    def _tell(self, result: Result) -> None:
        self.results[result] += 1
        if self._told is not None:
            self._told(result)

    def _dropped(
        self, reason: DropReason, call: CapturedCall, error: Exception | None = None
    ) -> None:
        self._tell(reason)
        log.warning(
            "capture_dropped",
            reason=reason,
            request_id=call.request_id,
            error=None if error is None else type(error).__name__,
        )
