"""A model call from its admission to its answer: match, guard, reserve, call, settle, answer.

Candidates are tried in the matcher's order, each as an attempt of its own, for as long as no byte
of an answer has gone to the client and the last failure was the candidate's, not the caller's.
"""

import asyncio
import secrets
from dataclasses import replace

import structlog
from opentelemetry.trace import Span

from terrace_common.names import NAMED_ATTEMPT_PREFIX
from terrace_common.telemetry import current_traceparent, trace_id_of
from terrace_gateway.calls.attempt import Attempt, Attempts, CapRefusedError, Exchange
from terrace_gateway.calls.conversation import Conversation
from terrace_gateway.calls.guardrail_meter import GuardrailMeter
from terrace_gateway.calls.ports import (
    Amounts,
    AuthorityUnavailableError,
    Decision,
)
from terrace_gateway.calls.send import Sender
from terrace_gateway.calls.serving import Call, CandidateFailedError, Serving
from terrace_gateway.calls.still_allowed import (
    ReservedOtherwiseError,
    StillAllowed,
    match_request,
    policy_changed,
)
from terrace_gateway.calls.worst_case import worst_case
from terrace_gateway.capture.record import CapturedCall
from terrace_gateway.crash_points import reach
from terrace_gateway.edge.client import Client
from terrace_gateway.edge.errors import (
    AUTHORITY_UNAVAILABLE,
    KILLED,
    MODEL_NOT_FOUND,
    MODEL_UNAVAILABLE,
    ApiError,
)
from terrace_gateway.edge.refusals import cap_refusal_error
from terrace_gateway.matching import Candidate, Excluded, NoCandidateError
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.upstream.port import BulkheadFullError, WayChangedError

log = structlog.get_logger()

CLAMPED_HEADER = b"x-terrace-clamped"
MODEL_HEADER = b"x-terrace-model"
MAX_NAMES_SHOWN = 10
MAX_NAME_SHOWN = 100


class ModelCalls:
    """Serves model calls on a runtime's parts."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._attempts = Attempts(runtime)
        self._allowed = StillAllowed(runtime.policy, runtime.matcher, runtime.clock)
        self._sender = Sender(runtime, self._attempts)

    async def serve(self, call: Call, client: Client, span: Span) -> None:
        """Serve one call. Raises ``ApiError``; the answer may have begun by then.

        It runs to its end in a task of its own, whatever the client does.
        """
        client.watch()
        task = asyncio.create_task(self._serve(call, client, span))
        self._runtime.in_flight.add(task)
        task.add_done_callback(self._ended)
        try:
            await asyncio.shield(task)
        finally:
            client.unwatch()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._runtime.in_flight.discard(task)
        if not task.cancelled():
            task.exception()  # seen: the handler may be gone

    async def _serve(self, call: Call, client: Client, span: Span) -> None:
        exchange = Exchange(
            call.request_id,
            trace_id_of(span),
            call.principal,
            call.request.surface,
            call.snapshot.version,
            span,
        )
        run = self._runtime.guardrails.start(
            call.principal.policy,
            call.principal.audit,
            GuardrailMeter(self._runtime, self._attempts, exchange, call.snapshot),
        )
        session = call.request.session()
        if session is not None:
            session = f"{call.principal.caller.key_id}:{session}"
        capture = call.principal.policy.capture is not None
        conversation = Conversation(call.request, session=session, capture=capture)
        serving = Serving(call, exchange, run, conversation, client)
        try:
            candidates = self._match(call, session)
            await self._guard(serving)
            await self._try_all(serving, candidates)
        finally:
            for decision in run.decisions(
                request_id=exchange.request_id,
                trace_id=exchange.trace_id,
                caller=call.principal.caller,
                surface=exchange.surface,
                model=conversation.model,
            ):
                self._runtime.journal.note(decision)
            self._capture(call, conversation)

    def _match(self, call: Call, session: str | None) -> tuple[Candidate, ...]:
        principal, snapshot = call.principal, call.snapshot
        killed = snapshot.killed(principal.caller)
        if killed is not None:
            raise ApiError(KILLED, killed)
        asked = match_request(call, session)
        excluded = Excluded(
            models=snapshot.killed_models | snapshot.undeployed,
            providers=snapshot.killed_providers,
        )
        try:
            match = self._runtime.matcher.match(
                asked, principal.policy, request_id=call.request_id, excluded=excluded
            )
        except NoCandidateError as error:
            unknown = error.code == MODEL_NOT_FOUND
            raise ApiError(
                error.code,
                self._models_instead(call, excluded) if unknown else error.message,
                param="model",
                retry_after_seconds=error.retry_after_seconds,
            ) from None
        if principal.audit is not None:
            first = match.candidates[0]
            told = self._runtime.matcher.would_deny(principal.audit, asked, first)
            if told is not None:
                self._note(call, "would_deny", "model", {"why": told}, first.model.name)
        return match.candidates

    def _models_instead(self, call: Call, excluded: Excluded) -> str:
        names = self._runtime.matcher.visible(
            call.principal.policy,
            surfaces=frozenset((call.request.surface,)),
            excluded=excluded,
        )
        listed = ", ".join(names[:MAX_NAMES_SHOWN]) + (", ..." if names[MAX_NAMES_SHOWN:] else "")
        asked = call.request.asked_model[:MAX_NAME_SHOWN]
        return (
            f"there is no model {asked!r} on this surface;"
            f" this key may use here: {listed or 'none'}"
        )

    async def _guard(self, serving: Serving) -> None:
        """What is sent is what the guardrails let pass."""
        conversation = serving.conversation
        if not serving.run.active:
            return
        texts = conversation.request.texts()
        passed = await serving.run.before(texts)
        if passed != texts:
            conversation.request = conversation.request.with_texts(passed)

    async def _try_all(self, serving: Serving, candidates: tuple[Candidate, ...]) -> None:
        failure: ApiError | None = None
        client = serving.client
        for index, candidate in enumerate(candidates):
            try:
                await self._try(serving, candidate, first=index == 0)
            except CandidateFailedError as failed:
                failure = failed.error
                if client.status is not None or client.gone:
                    break
                if index + 1 < len(candidates):
                    reach("calls.before-fallback")
                    detail: dict[str, object] = {"why": failed.error.code}
                    self._note(
                        serving.call, "fallback", failed.error.code, detail, candidate.model.name
                    )
                    self._runtime.metrics.fallbacks.labels(candidate.model.name).inc()
            else:
                return
        raise failure or ApiError(MODEL_UNAVAILABLE, "no model can take this request now")

    async def _try(
        self, serving: Serving, candidate: Candidate, *, first: bool, anew: bool = False
    ) -> None:
        """One candidate; once more, ``anew``, if the policy of its reservation was no longer in
        force when it was to be sent, or another had led it elsewhere meanwhile. Raises
        ``CandidateFailedError``: the next may be tried."""
        matcher = self._runtime.matcher
        call, candidate = await self._allowed.renewed(serving.call, candidate)
        if call is not serving.call:
            exchange = replace(
                serving.exchange, principal=call.principal, policy_version=call.snapshot.version
            )
            serving = replace(serving, call=call, exchange=exchange)
        attempt_id = f"{NAMED_ATTEMPT_PREFIX}{secrets.token_hex(16)}"
        try:  # a candidate that cannot bound the request leaves it to another
            upstream = self._upstream_request(serving, candidate, attempt_id)
            reserved = worst_case(candidate, upstream, call.snapshot)
        except ApiError as error:
            raise CandidateFailedError(error) from error
        if not matcher.begin(candidate):
            raise CandidateFailedError(
                ApiError(MODEL_UNAVAILABLE, "the model is being tried again after failures")
            )
        try:
            attempt = await self._open(
                serving, candidate, upstream, reserved, attempt_id=attempt_id, first=first
            )
        except CapRefusedError as refused:
            matcher.refused(candidate, refused.refusal)
            error = cap_refusal_error(
                refused.refusal,
                worst_case_micro_usd=reserved.micro_usd,
                max_output_tokens=upstream.max_output_tokens,
            )
            if refused.refusal.cap.scope in {"model", "provider"}:
                raise CandidateFailedError(error) from None
            raise error from None
        except AuthorityUnavailableError as error:
            matcher.abandoned(candidate)
            raise ApiError(
                AUTHORITY_UNAVAILABLE,
                f"the budget authority is away; nothing was sent to {candidate.model.name}",
            ) from error
        except BaseException:
            matcher.abandoned(candidate)
            raise
        structlog.contextvars.bind_contextvars(attempt_id=attempt_id)
        try:
            await self._sender.send(
                serving,
                attempt,
                candidate,
                upstream,
                lambda: self._allowed.confirm(call, candidate),
            )
        except BulkheadFullError as full:
            raise CandidateFailedError(
                ApiError(
                    MODEL_UNAVAILABLE,
                    "the model's provider is busy; nothing was sent to it",
                    retry_after_seconds=full.retry_after_seconds,
                )
            ) from full
        except (ReservedOtherwiseError, WayChangedError):
            if anew:
                raise policy_changed() from None
        else:
            return
        await self._try(serving, candidate, first=first, anew=True)

    def _upstream_request(
        self, serving: Serving, candidate: Candidate, attempt_id: str
    ) -> UpstreamRequest:
        request = serving.conversation.request
        return request.upstream(
            governance=serving.call.snapshot.governance,
            model=candidate.model,
            attempt_id=attempt_id,
            traceparent=current_traceparent(serving.exchange.span),
            max_output_tokens=candidate.output_tokens,
            relay=self._runtime.upstream.is_relay(candidate.model.provider, request.surface),
        )

    async def _open(
        self,
        serving: Serving,
        candidate: Candidate,
        upstream: UpstreamRequest,
        reserved: Amounts,
        *,
        attempt_id: str,
        first: bool,
    ) -> Attempt:
        call, model = serving.call, candidate.model
        serving.conversation.model = model.name
        headers = [(MODEL_HEADER, model.name.encode())]
        clamped = None
        if upstream.max_output_tokens not in {0, call.request.needs.output_tokens}:
            clamped = f"max_tokens={upstream.max_output_tokens}"
            headers.append((CLAMPED_HEADER, clamped.encode()))
        serving.client.extra = [*call.headers, *headers]
        return await self._attempts.open(
            attempt_id,
            serving.exchange,
            self._sender.target(candidate, upstream),
            caps=(
                *call.principal.caps,
                *call.snapshot.caps_of("model", model.name),
                *call.snapshot.caps_of("provider", model.provider),
            ),
            reserved=reserved,
            hard_limit_seconds=self._sender.hard_limit(call.snapshot),
            purpose="call" if first else "fallback",
            clamped=clamped,
        )

    def _capture(self, call: Call, conversation: Conversation) -> None:
        capture = call.principal.policy.capture
        if capture is None or conversation.model is None:
            return
        self._runtime.capture.offer(
            CapturedCall(
                request_id=call.request_id,
                caller=call.principal.caller,
                surface=call.request.surface,
                model=conversation.model,
                texts=conversation.request.texts(),
                answer_texts=conversation.heard,
                retention_days=capture.retention_days,
            )
        )

    def _note(
        self, call: Call, decision: str, reason: str, detail: dict[str, object], model: str | None
    ) -> None:
        self._runtime.journal.note(
            Decision(
                decision,  # pyright: ignore[reportArgumentType]
                reason,
                detail,
                call.request_id,
                "",
                call.principal.caller,
                call.request.surface,
                model,
            )
        )
