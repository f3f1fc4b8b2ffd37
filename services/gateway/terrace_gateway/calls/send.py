"""The upstream call of one open attempt: sent once, its answer brought to the client, closed.

The close is made before the last bytes of the answer go out. Exactly one word about its health
goes to the matcher.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator
from typing import Literal

import structlog
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from terrace_common.telemetry import semconv
from terrace_gateway.calls.attempt import Attempt, Attempts, Target
from terrace_gateway.calls.muzzle import Muzzle
from terrace_gateway.calls.ports import Outcome, Usage
from terrace_gateway.calls.running import RunningCall
from terrace_gateway.calls.serving import CandidateFailedError, Serving
from terrace_gateway.crash_points import reach
from terrace_gateway.edge.errors import KILLED, UPSTREAM_ERROR, UPSTREAM_TIMEOUT, ApiError
from terrace_gateway.edge.refusals import upstream_error
from terrace_gateway.matching import Candidate
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.surface import (
    JSON_HEADERS,
    AnswerStream,
    BrokenAnswerError,
    Identity,
    read_answer,
)
from terrace_gateway.surfaces.upstream_request import UpstreamRequest
from terrace_gateway.surfaces.usage import with_embeddings_usage
from terrace_gateway.upstream.http_connection import ConnectionBrokenError
from terrace_gateway.upstream.port import (
    BeforeSend,
    BulkheadFullError,
    NotSentError,
    UpstreamLostError,
    UpstreamResponse,
    WayChangedError,
)
from terrace_gateway.upstream.relay_stream import RelayChatStream, relay_usage

log = structlog.get_logger()

MAX_ANSWER_BYTES = 64 * 1024 * 1024
LINGER_SECONDS = 5  # for the upstream's own end after the end of the answer
_CALLERS_FAULT = frozenset({400, 413, 422})
_REFUSALS = _CALLERS_FAULT | {429}


class Sender:
    """Makes upstream calls on a runtime's parts."""

    def __init__(self, runtime: Runtime, attempts: Attempts) -> None:
        self._runtime = runtime
        self._attempts = attempts

    def target(self, candidate: Candidate, upstream: UpstreamRequest) -> Target:
        """What an attempt at ``candidate`` calls, for its records."""
        model = candidate.model
        return Target(
            model.name,
            model.upstream_model,
            model.provider,
            candidate.quote,
            upstream.image_count,
            upstream.free,
        )

    def hard_limit(self, snapshot: Snapshot) -> int:
        """Seconds after which a call is given up."""
        return snapshot.governance.defaults.hard_stream_limit_seconds

    async def send(
        self,
        serving: Serving,
        attempt: Attempt,
        candidate: Candidate,
        upstream: UpstreamRequest,
        still_allowed: BeforeSend,
    ) -> None:
        """Call, answer, close. Raises ``CandidateFailedError`` or ``ApiError``, also those of
        ``still_allowed``, which is asked when nothing but sending is left.

        A change of the policy from then on finds this call running; one that came before it did
        not.
        """
        runtime, matcher = self._runtime, self._runtime.matcher
        limit = self.hard_limit(serving.call.snapshot)
        span = attempt.span = self._span(attempt, candidate, upstream)
        deadline = asyncio.timeout(limit)
        entered = runtime.running.entered(
            serving.call.principal, candidate.model.name, candidate.model.provider, deadline
        )
        sending = _Sending(self, serving, attempt, candidate, still_allowed)
        cuts = serving.call.principal.policy.on_disconnect == "cut"
        if cuts and serving.client.gone:
            await self._attempts.close(attempt, "not_sent")
        running: RunningCall | None = None
        try:
            if attempt.outcome is not None:
                return
            async with deadline:
                with entered as running, sending.cut_on_leaving(running):
                    await sending.call(upstream)
        except (BulkheadFullError, WayChangedError):
            await self._attempts.close(attempt, "not_sent")
            raise
        except NotSentError as error:
            await self._attempts.close(attempt, "not_sent")
            sending.failed("error")
            raise CandidateFailedError(
                ApiError(UPSTREAM_ERROR, "the model cannot be reached; nothing was sent to it")
            ) from error
        except TimeoutError as error:
            if sending.left:
                await self._attempts.close(attempt, sending.ended("cut"))
                return
            if running is not None and running.cut_reason is not None:
                await self._attempts.close(attempt, sending.ended("cut"))
                raise ApiError(KILLED, running.cut_reason) from None
            await self._attempts.close(attempt, sending.ended("unknown"))
            sending.failed("unknown" if sending.sent else "error")
            raise CandidateFailedError(
                ApiError(UPSTREAM_TIMEOUT, f"no complete answer within {limit} s")
            ) from error
        except (UpstreamLostError, BrokenAnswerError, RecursionError) as error:
            await self._attempts.close(attempt, "unknown")
            sending.failed("unknown")
            raise CandidateFailedError(
                ApiError(UPSTREAM_ERROR, "the upstream call broke off")
            ) from error
        finally:
            if attempt.outcome is None:  # refused, cancelled at shutdown, or a defect of ours
                await self._attempts.close(attempt, sending.ended("unknown"))
            if not sending.told:
                matcher.abandoned(candidate)
            if attempt.overran:
                matcher.froze(candidate, serving.call.request.needs.features)
            self._end(span, attempt)

    def _span(self, attempt: Attempt, candidate: Candidate, upstream: UpstreamRequest) -> Span:
        model = candidate.model
        return self._runtime.telemetry.tracer.start_span(
            semconv.chat_span_name(model.upstream_model),
            context=set_span_in_context(attempt.exchange.span),
            kind=SpanKind.CLIENT,
            attributes={
                semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
                semconv.PROVIDER_NAME: model.provider,
                semconv.REQUEST_MODEL: model.upstream_model,
                semconv.REQUEST_MAX_TOKENS: upstream.max_output_tokens,
                semconv.TERRACE_ATTEMPT_ID: attempt.id,
            },
        )

    def _end(self, span: Span, attempt: Attempt) -> None:
        span.set_attributes(
            {
                semconv.TERRACE_OUTCOME: attempt.outcome or "unknown",
                semconv.TERRACE_RESERVED: attempt.reserved.micro_usd,
                semconv.TERRACE_AMOUNT: attempt.amount_micro_usd,
                semconv.USAGE_INPUT_TOKENS: attempt.usage.all_input_tokens,
                semconv.USAGE_OUTPUT_TOKENS: attempt.usage.output_tokens,
            }
        )
        if attempt.outcome in ("unknown", "upstream_error", "not_sent", "cut"):
            span.set_status(Status(StatusCode.ERROR, attempt.outcome))
        span.end()

    @property
    def runtime(self) -> Runtime:
        """The parts."""
        return self._runtime

    @property
    def attempts(self) -> Attempts:
        """Where attempts are closed."""
        return self._attempts


class _Sending:
    """One call on its way."""

    def __init__(
        self,
        sender: Sender,
        serving: Serving,
        attempt: Attempt,
        candidate: Candidate,
        still_allowed: BeforeSend,
    ) -> None:
        call = serving.call
        self._runtime = sender.runtime
        self._attempts = sender.attempts
        self._attempt = attempt
        self._candidate = candidate
        self._still_allowed = still_allowed
        self._run = serving.run
        self._conversation = serving.conversation
        self._client = serving.client
        self._answers = self._conversation.request.answers(
            Identity(call.request_id, call.request.asked_model)
        )
        self._cuts = call.principal.policy.on_disconnect == "cut"
        self._relayed = self._counted_apart = False
        self.told = False
        """Whether the matcher has heard how it went."""
        self.sent = False
        """Whether a byte of the request may have left."""
        self.left = False
        """Whether the client left a call that the policy cuts then."""

    @contextlib.contextmanager
    def cut_on_leaving(self, running: RunningCall) -> Generator[None]:
        """Where the policy says so the call ends when its client leaves, at once: a model that
        thinks may be silent for long."""

        def left() -> None:
            self.left = True
            running.cut("its client left")

        if not self._cuts:
            yield
            return
        with self._client.telling(left):
            yield

    def failed(self, how: Literal["unknown", "error"]) -> None:
        """The candidate's own failure."""
        if not self.told:
            self.told = True
            self._runtime.matcher.failed(self._candidate, how)

    def _succeeded(self) -> None:
        self.told = True
        self._runtime.matcher.succeeded(self._candidate, self._conversation.session)

    def ended(self, outcome: Outcome) -> Outcome:
        """``outcome``, or that it provably was not sent."""
        return outcome if self.sent else "not_sent"

    async def _before_send(self) -> None:
        await self._still_allowed()
        self.sent = True

    async def call(self, upstream: UpstreamRequest) -> None:
        """Send it and bring the answer back."""
        self._relayed, self._counted_apart = upstream.relayed, upstream.counted_apart
        reach("calls.before-send")
        async with self._runtime.upstream.call(
            upstream, self._candidate.model, self._before_send
        ) as response:
            reach("calls.after-head")
            self._attempt.upstream_request_id = response.request_id
            if response.status != 200:
                await self._refused(response)
            elif self._answers.stream:
                await self._stream(response)
            else:
                await self._plain(response)

    async def _refused(self, response: UpstreamResponse) -> None:
        answered, status = response.provider_answered, response.status
        await self._attempts.close(self._attempt, "upstream_error" if answered else "unknown")
        error = upstream_error(
            status if answered or status not in _REFUSALS else 502,
            response.retry_after,
            await response.error_body(),
            surface=self._attempt.exchange.surface,
        )
        if answered and status in _CALLERS_FAULT:
            raise error  # another candidate would hear the same request
        if answered and status == 429:
            self.told = True
            self._runtime.matcher.throttled(self._candidate, error.retry_after_seconds)
        else:
            self.failed("error" if answered else "unknown")
        raise CandidateFailedError(error)

    async def _plain(self, response: UpstreamResponse) -> None:
        body = bytearray()
        async for data in response.chunks():
            self._attempts.first_byte(self._attempt)
            body += data
            if len(body) > MAX_ANSWER_BYTES:
                raise BrokenAnswerError("the answer is too large")
        untouched = self._untouched
        answer: object = None
        if untouched:
            usage = relay_usage(bytes(body), self._answers.name)
        else:
            answer = read_answer(bytes(body), self._answers.name)
            usage = self._answers.usage(answer)
        if self._counted_apart:
            usage = Usage(response.input_tokens, 0) if response.input_tokens else None
            answer = with_embeddings_usage(answer, usage)
        await self._attempts.close(self._attempt, self._ending, usage, "response")
        self._succeeded()
        if untouched:
            await self._client.respond(200, JSON_HEADERS, bytes(body))
            return
        if self._run.hears_answers or self._conversation.captures:
            texts = self._answers.texts(answer)
            passed = await self._run.after(texts)
            for text in passed:
                self._conversation.hear(text)
            if self._run.changes_answers:
                answer = self._answers.replace_texts(answer, passed)
        await self._client.respond(200, JSON_HEADERS, self._answers.rebuild(answer))

    @property
    def _untouched(self) -> bool:
        """Whether the provider's own bytes go to the client."""
        return self._relayed and not self._run.active and not self._conversation.captures

    @property
    def _ending(self) -> Outcome:
        return "client_cancelled" if self._client.gone else "ok"

    async def _stream(self, response: UpstreamResponse) -> None:
        text_filter = self._run.stream()
        muzzle = Muzzle(text_filter) if text_filter is not None else None
        stream: AnswerStream
        if self._untouched and self._answers.name == "chat":
            stream = RelayChatStream(include_usage=self._conversation.shows_usage)
        else:
            stream = self._answers.open_stream(self._conversation.listening(muzzle))
        held = bytearray() if text_filter is not None and text_filter.holds else None
        source = response.chunks()
        try:
            await self._pass_on(stream, source, muzzle, held)
        finally:
            # Whatever ends the stream, what the provider has reported is what it costs.
            if stream.usage is not None:
                await self._attempts.close(self._attempt, self._ending, stream.usage, "stream")
        client = self._client
        blocked = muzzle.blocked if muzzle is not None else None
        if blocked is not None and self._cuts:
            await self._attempts.close(self._attempt, "cut")
        if blocked is None and (stream.failed or (stream.usage is None and not stream.done)):
            raise UpstreamLostError("the upstream ended the stream early")
        await self._attempts.close(self._attempt, self._ending, stream.usage, "stream")
        self._succeeded()
        last = stream.ending()
        if blocked is None and text_filter is not None:
            await text_filter.check()
        if blocked is None and muzzle is not None:
            blocked = muzzle.blocked
        if blocked is not None:
            raise blocked
        if client.status is None:
            await client.start(200, self._answers.stream_headers)
        await client.finish(bytes(held or b"") + last)
        await _linger(source)

    async def _pass_on(
        self,
        stream: AnswerStream,
        source: AsyncIterator[bytes],
        muzzle: Muzzle | None,
        held: bytearray | None,
    ) -> None:
        client = self._client
        async for data in source:
            self._attempts.first_byte(self._attempt)
            passed = stream.feed(data)
            if muzzle is not None and muzzle.blocked is not None:
                if self._cuts:
                    return
                passed = b""  # it is drained for its usage
            if passed and held is not None:
                held += passed
                if len(held) > MAX_ANSWER_BYTES:
                    raise BrokenAnswerError("the answer is too large")
            elif passed:
                if client.status is None:
                    await client.start(200, self._answers.stream_headers)
                await client.write(passed)
                reach("calls.in-stream")
            if stream.done or stream.failed:
                return


async def _linger(source: AsyncIterator[bytes]) -> None:
    """Let the upstream end by itself: the answer is complete and settled."""
    try:
        async with asyncio.timeout(LINGER_SECONDS):
            async for _ in source:
                pass
    except (TimeoutError, ConnectionBrokenError, UpstreamLostError, OSError):
        pass
