"""The guardrails of one call, one after the other: those computed here first, then the others.

Each sees what those before left: masks compose. The first that blocks ends it, so that nobody is
billed for a text that was refused anyway.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import structlog

from terrace_common.governance import Governance
from terrace_common.governance.guardrails import Action, Phase
from terrace_gateway.calls.ports import Caller, Decision, EffectivePolicy, Verdict
from terrace_gateway.edge.errors import CONTENT_BLOCKED, GUARDRAIL_UNAVAILABLE, ApiError
from terrace_gateway.guardrails.build import build_guardrails
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.guardrails.port import Guardrail, GuardrailFailedError, Meter, PartFilter
from terrace_gateway.surfaces.json_text import read_source

log = structlog.get_logger()

__all__ = ["GuardrailRun", "Guardrails", "StreamFilter"]

MAX_COLLECTED = 4 * 1024 * 1024
"""Characters of a streamed answer that are kept for a guardrail that must see it whole."""
MAX_PARTS = 4096
"""Of a streamed answer that are looked at: each is remembered until its end."""

Did = Literal["block", "mask", "flag", "would_block", "would_mask", "failed", "failed_open"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a guardrail did, by names only."""

    guardrail: str
    phase: Phase
    did: Did
    rules: tuple[str, ...]
    micro_usd: int = 0


@dataclass(frozen=True, slots=True)
class Applied:
    """A guardrail as policies apply it."""

    guardrail: Guardrail
    audit: bool
    """Named by policies of mode ``audit`` only: it is asked, and nothing is changed."""

    @property
    def action(self) -> Action:
        """What is done with what it finds."""
        return "flag" if self.audit else self.guardrail.action

    def in_phase(self, phase: Phase) -> bool:
        """Whether it is asked then. ``stream`` and ``after`` imply each other, or a client could
        choose the form of answer that is not looked at."""
        phases = self.guardrail.phases
        return "before" in phases if phase == "before" else bool(phases & {"stream", "after"})


class Guardrails:
    """The guardrails of one version of the governance spec."""

    def __init__(self, guardrails: Sequence[Guardrail]) -> None:
        self._by_name = {guardrail.name: guardrail for guardrail in guardrails}

    @classmethod
    def build(cls, governance: Governance, http: GuardrailHttp) -> "Guardrails":
        """Those that the spec declares; no I/O. Raises ``ValueError`` for what RE2 refuses."""
        return cls(build_guardrails(governance, http))

    def start(
        self, policy: EffectivePolicy, audit: EffectivePolicy | None, meter: Meter | None = None
    ) -> "GuardrailRun":
        """For one client request. Raises ``ApiError`` for a name that the spec does not have."""
        watching = () if audit is None else audit.guardrails
        applied: list[Applied] = []
        for names, only_audit in ((policy.guardrails, False), (watching, True)):
            for name in names:
                if any(one.guardrail.name == name for one in applied):
                    continue
                guardrail = self._by_name.get(name)
                if guardrail is None:
                    raise _unavailable(name)
                applied.append(Applied(guardrail, only_audit))
        applied.sort(key=lambda one: not one.guardrail.local)
        return GuardrailRun(tuple(applied), meter)


class GuardrailRun:
    """The guardrails of one client request, and what they found."""

    def __init__(self, applied: tuple[Applied, ...], meter: Meter | None) -> None:
        self._applied = applied
        self._meter = meter
        self.findings: list[Finding] = []
        self.micro_usd = 0
        """What asking has cost so far."""
        self._told = 0

    @property
    def active(self) -> bool:
        """Whether there is any guardrail."""
        return bool(self._applied)

    @property
    def hears_answers(self) -> bool:
        """Whether any looks at answers."""
        return any(one.in_phase("after") for one in self._applied)

    @property
    def changes_answers(self) -> bool:
        """Whether any may do more with an answer than record what it found."""
        return any(one.in_phase("after") and one.action != "flag" for one in self._applied)

    async def before(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The prompt's texts, masked. Raises ``ApiError``."""
        return await self._phase("before", texts)

    async def after(self, texts: Sequence[str]) -> tuple[str, ...]:
        """A whole answer's texts, masked. Raises ``ApiError``."""
        return await self._phase("after", texts)

    def stream(self) -> "StreamFilter | None":
        """The filter of one streamed answer; ``None``: no guardrail looks at answers."""
        applied = [one for one in self._applied if one.in_phase("stream")]
        return StreamFilter(self, applied) if applied else None

    def decisions(
        self,
        *,
        request_id: str,
        trace_id: str,
        caller: Caller | None,
        surface: str | None = None,
        model: str | None = None,
    ) -> list[Decision]:
        """What was found since this was last called: names of guardrails and rules, no text."""
        fresh, self._told = self.findings[self._told :], len(self.findings)
        return [
            Decision(
                decision=_DECISIONS[finding.did],
                reason=f"guardrail:{finding.guardrail}",
                detail={
                    "phase": finding.phase,
                    "did": finding.did,
                    "rules": list(finding.rules),
                    "micro_usd": finding.micro_usd,
                },
                request_id=request_id,
                trace_id=trace_id,
                caller=caller,
                surface=surface,
                model=model,
            )
            for finding in fresh
        ]

    async def _phase(
        self, phase: Literal["before", "after"], texts: Sequence[str]
    ) -> tuple[str, ...]:
        passed = tuple(texts)
        for one in self._applied:
            if one.in_phase(phase) and any(passed):
                passed = await self.ask(one, phase, passed)
        return passed

    async def ask(self, one: Applied, phase: Phase, texts: tuple[str, ...]) -> tuple[str, ...]:
        """Ask one guardrail. Raises ``ApiError`` where it blocks or fails closed."""
        guardrail = one.guardrail
        ask = guardrail.before if phase == "before" else guardrail.after
        try:
            async with asyncio.timeout(guardrail.timeout_seconds):
                verdict = await ask(texts, self._meter)
        except (GuardrailFailedError, TimeoutError) as error:
            self.failed(one, phase, error)
            return texts
        except ApiError as error:  # of the meter: no budget for it, say
            if not one.audit:
                raise
            self.failed(one, phase, GuardrailFailedError(error.code))
            return texts
        self.micro_usd += verdict.micro_usd
        return self._apply(one, phase, verdict, texts)

    def failed(self, one: Applied, phase: Phase, error: Exception) -> None:
        """It could not say. Raises ``ApiError`` where that refuses the call."""
        opens = one.guardrail.fails_open or one.audit
        name = one.guardrail.name
        reason = "time limit" if isinstance(error, TimeoutError) else str(error)
        log.warning("guardrail_failed", guardrail=name, phase=phase, reason=reason, opens=opens)
        self.findings.append(Finding(name, phase, "failed_open" if opens else "failed", ()))
        if not opens:
            raise _unavailable(name)

    def blocked(
        self, one: Applied, phase: Phase, rules: tuple[str, ...], cost: int = 0
    ) -> ApiError:
        """Record a block; the error for the client, which names guardrail and rules."""
        name = one.guardrail.name
        self.findings.append(Finding(name, phase, "block", rules, cost))
        what = "the prompt" if phase == "before" else "the answer"
        return ApiError(
            CONTENT_BLOCKED, f"guardrail {name} blocked {what}: {', '.join(rules) or 'no reason'}"
        )

    def noticed(self, one: Applied, phase: Phase, rules: tuple[str, ...], cost: int = 0) -> None:
        """Record what was masked or flagged."""
        if one.audit:
            did = _WOULD[one.guardrail.action]
        else:
            did = "mask" if one.action == "mask" else "flag"
        self.findings.append(Finding(one.guardrail.name, phase, did, rules, cost))

    def _apply(
        self, one: Applied, phase: Phase, verdict: Verdict, texts: tuple[str, ...]
    ) -> tuple[str, ...]:
        if verdict.action == "allow":
            return texts
        if verdict.action == "flag" or one.action == "flag":
            self.noticed(one, phase, verdict.reasons, verdict.micro_usd)
            return texts
        if verdict.action == "block" or one.action == "block" or verdict.texts is None:
            raise self.blocked(one, phase, verdict.reasons, verdict.micro_usd)
        if len(verdict.texts) != len(texts):
            raise self.blocked(one, phase, (*verdict.reasons, "masked-unaligned"))
        self.noticed(one, phase, verdict.reasons, verdict.micro_usd)
        return verdict.texts


_WOULD: dict[Action, Did] = {"block": "would_block", "mask": "would_mask", "flag": "flag"}
_DECISIONS: dict[Did, Literal["deny", "would_deny", "mask", "flag", "alert"]] = {
    "block": "deny",
    "mask": "mask",
    "flag": "flag",
    "would_block": "would_deny",
    "would_mask": "flag",
    "failed": "deny",
    "failed_open": "alert",
}


@dataclass(slots=True)
class _Stage:
    one: Applied
    told: set[str] = field(default_factory=set[str])
    broken: bool = False


class StreamFilter:
    """All guardrails of one streamed answer, each of its parts by itself.

    A part that goes on after another was begun is looked at as the one text that its client joins.
    """

    def __init__(self, run: GuardrailRun, applied: Sequence[Applied]) -> None:
        self._run = run
        self._remote = [one for one in applied if not one.guardrail.local]
        self._stages = [_Stage(one) for one in applied if one.guardrail.local]
        self._parts: dict[object, list[PartFilter | None]] = {}
        self._part: object = None
        """That was fed last."""
        self._collected: dict[object, list[str]] = {}
        self._size = 0

    @property
    def holds(self) -> bool:
        """Whether nothing may be shown before ``check`` has passed."""
        return any(not one.audit and one.action != "flag" for one in self._remote)

    def feed(self, text: str, part: object = None) -> str:
        """The text that may be shown now. Raises ``ApiError`` to end the stream."""
        self._part = part
        for stage, looks in zip(self._stages, self._filters(part), strict=True):
            text = self._through(stage, looks, text, end=False)
        return self._keep(text)

    def flush(self) -> str:
        """What is held back of the part that was fed last. Raises ``ApiError``."""
        text = ""
        for stage, looks in zip(self._stages, self._filters(self._part), strict=True):
            shown = self._through(stage, looks, text, end=False) if text else ""
            text = shown + self._through(stage, looks, "", end=True)
        if self._part is None:  # a text by itself: the next is another
            self._parts.pop(None, None)
        return self._keep(text)

    def _filters(self, part: object) -> list[PartFilter | None]:
        found = self._parts.get(part)
        if found is None:
            if len(self._parts) >= MAX_PARTS:
                self._give_up(GuardrailFailedError("the answer has too many parts"))
            found = [stage.one.guardrail.stream() for stage in self._stages]
            self._parts[part] = found
        return found

    def _give_up(self, error: GuardrailFailedError) -> None:
        self._parts.clear()
        for stage in self._stages:
            if not stage.broken:
                stage.broken = True
                self._run.failed(stage.one, "stream", error)

    async def check(self) -> None:
        """At the end: ask the guardrails that must see the answer whole. Raises ``ApiError``.

        What such a one would mask is blocked, for the text has passed already.
        """
        texts = tuple(read_source("".join(pieces)) for pieces in self._collected.values())
        self._collected = {}
        if not texts:
            return
        for one in self._remote:
            masked = await self._run.ask(one, "stream", texts)
            if masked != texts:
                raise self._run.blocked(one, "stream", ("masked-too-late",))

    def _through(self, stage: _Stage, looks: PartFilter | None, text: str, *, end: bool) -> str:
        if stage.broken or looks is None:
            return text
        try:
            shown = looks.flush() if end else looks.feed(text)
        except GuardrailFailedError as error:
            stage.broken = True
            self._run.failed(stage.one, "stream", error)
            return text if stage.one.action == "flag" else looks.rest()
        found = looks.found
        if found and (fresh := tuple(name for name in found if name not in stage.told)):
            stage.told.update(fresh)
            if stage.one.action == "block":
                raise self._run.blocked(stage.one, "stream", fresh)
            self._run.noticed(stage.one, "stream", fresh)
        if looks.late and stage.one.action != "flag":
            raise self._run.blocked(stage.one, "stream", ("masked-too-late",))
        return text if stage.one.action == "flag" else shown

    def _keep(self, text: str) -> str:
        if self._remote and text:
            self._size += len(text)
            if self._size > MAX_COLLECTED:
                for one in self._remote:
                    self._run.failed(one, "stream", GuardrailFailedError("the answer is too long"))
                self._remote = []
            self._collected.setdefault(self._part, []).append(text)
        return text


def _unavailable(name: str) -> ApiError:
    return ApiError(
        GUARDRAIL_UNAVAILABLE, f"guardrail {name} cannot say now; try again", retry_after_seconds=1
    )
