"""One model call from the open entry in the book to its close, whatever the connection does.

The order that the bill rests on: entry open and on the disk, first byte, ..., entry closed and on
the disk, last byte. A call whose entry cannot be closed is broken off, never finished.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from terrace_model_simulator.bill import BillUnavailableError, Book, Entry, Outcome
from terrace_model_simulator.connection import CallerConnection, OpenConnections
from terrace_model_simulator.faults import FaultsOfCall
from terrace_model_simulator.generation import Answer
from terrace_model_simulator.metrics import SimulatorMetrics
from terrace_model_simulator.prices import ModelEntry
from terrace_model_simulator.prompt import Surface
from terrace_model_simulator.settings import SimulatorSettings
from terrace_model_simulator.tracing import CallTracing

_log = structlog.get_logger("terrace_model_simulator.call")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished call."""

    input_tokens: int
    output_tokens: int


class AnswerFormat(Protocol):
    """How a face writes an answer. A plain answer has everything in ``closing``."""

    streams: bool
    content_type: str

    def opening(self) -> bytes:
        """What comes before the first token."""
        ...

    def chunk(self, text: str) -> bytes:
        """Some tokens."""
        ...

    def closing(self, usage: Usage | None) -> bytes:
        """What comes after the last token; ``usage`` is None when it is left out on purpose."""
        ...

    def headers(self, usage: Usage | None) -> Mapping[str, str]:
        """Headers besides the content type; ``usage`` is None while it is not known."""
        ...


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A validated, priced call, ready to be worked on."""

    attempt_id: str | None
    model: str
    price: ModelEntry
    surface: Surface
    input_tokens: int
    answer: Answer
    faults: FaultsOfCall
    request_metadata: Mapping[str, str]
    trace_headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Desk:
    """What all calls share."""

    settings: SimulatorSettings
    book: Book
    metrics: SimulatorMetrics
    tracing: CallTracing
    connections: OpenConnections


class ModelResponse(Response):
    """A response that works on the call while it is being sent.

    ``unavailable`` is sent instead when the book cannot open an entry.
    """

    def __init__(
        self, call: ModelCall, answer_format: AnswerFormat, desk: Desk, *, unavailable: Response
    ) -> None:
        super().__init__()
        self._call = call
        self._format = answer_format
        self._desk = desk
        self._unavailable = unavailable

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call, desk = self._call, self._desk
        async with CallerConnection(scope, receive, send, desk.connections) as caller:
            if call.faults.hang:
                desk.metrics.refused(call.surface, call.model, "fault")
                await caller.gone.wait()
                return
            if call.faults.disconnect_after == 0:
                desk.metrics.refused(call.surface, call.model, "fault")
                await caller.hang_up()
                return
            try:
                entry = await desk.book.open(
                    attempt_id=call.attempt_id,
                    model=call.model,
                    price=call.price,
                    surface=call.surface,
                    input_tokens=call.input_tokens,
                    request_metadata=call.request_metadata,
                )
            except BillUnavailableError as error:
                _log.warning("call refused", reason=str(error), attempt_id=call.attempt_id)
                desk.metrics.refused(call.surface, call.model, "refused")
                await self._unavailable(scope, receive, send)
                return
            await _Work(call, self._format, desk, caller, entry).run()


class _Work:
    """The call between open and close."""

    def __init__(
        self,
        call: ModelCall,
        answer_format: AnswerFormat,
        desk: Desk,
        caller: CallerConnection,
        entry: Entry,
    ) -> None:
        self._call = call
        self._format = answer_format
        self._desk = desk
        self._caller = caller
        self._entry = entry
        self._produced = 0
        self._closed = False

    async def run(self) -> None:
        call = self._call
        self._desk.metrics.opened()
        span = self._desk.tracing.start(
            headers=call.trace_headers,
            model=call.model,
            surface=call.surface,
            attempt_id=call.attempt_id,
        )
        outcome: Outcome = "failed_after_start"
        try:
            outcome = await self._produce()
            if outcome == "ok":
                await self._finish()
            else:
                await self._close(outcome)
                if outcome == "failed_after_start":
                    await self._caller.hang_up()
        except BillUnavailableError as error:
            _log.error("call broken off", reason=str(error), seq=self._entry.seq)
            outcome = "failed_after_start"
            if not self._caller.gone.is_set():
                await self._caller.hang_up()
        finally:
            if not self._closed:
                await asyncio.shield(self._close_late())
            self._desk.tracing.end(
                span,
                outcome=outcome,
                input_tokens=call.input_tokens,
                output_tokens=self._produced,
            )

    async def _produce(self) -> Outcome:
        """Make the answer and, if it is streamed, send it; everything but its end."""
        caller, faults, settings = self._caller, self._call.faults, self._desk.settings
        await caller.pause(settings.time_to_first_token_seconds + faults.latency)
        if caller.gone.is_set():
            return "client_gone"
        if self._format.streams:
            await self._start(None)
            opening = self._format.opening()
            if opening:
                await caller.write(opening)
        tokens = self._call.answer.tokens
        step = settings.tokens_per_chunk
        pace = step / settings.tokens_per_second if settings.tokens_per_second else 0.0
        for number, begin in enumerate(range(0, len(tokens), step), start=1):
            await caller.pause(pace + faults.chunk_latency)
            if caller.gone.is_set():
                return "client_gone"
            part = tokens[begin : begin + step]
            self._produced += len(part)
            if self._format.streams:
                await caller.write(self._format.chunk("".join(part)))
            if number % settings.checkpoint_chunks == 0:
                self._desk.book.checkpoint(self._entry, self._produced)
            if faults.disconnect_after is not None and number >= faults.disconnect_after:
                return "failed_after_start"
        # An answer with fewer chunks than the switch waits for is cut before its end.
        return "ok" if faults.disconnect_after is None else "failed_after_start"

    async def _finish(self) -> None:
        await self._close("ok")
        usage = Usage(self._call.input_tokens, self._produced)
        last = self._format.closing(None if self._call.faults.no_usage else usage)
        if not self._format.streams:
            await self._start(len(last))
        await self._caller.finish(last)

    async def _start(self, content_length: int | None) -> None:
        usage = None
        if content_length is not None and not self._call.faults.no_usage:
            usage = Usage(self._call.input_tokens, self._produced)
        headers = [(b"content-type", self._format.content_type.encode())]
        headers += [(k.encode(), v.encode()) for k, v in self._format.headers(usage).items()]
        if content_length is not None:
            headers.append((b"content-length", str(content_length).encode()))
        await self._caller.start(200, headers)

    async def _close(self, outcome: Outcome) -> None:
        self._closed = True
        try:
            await asyncio.shield(
                self._desk.book.close(self._entry, output_tokens=self._produced, outcome=outcome)
            )
        finally:
            self._report(self._entry.outcome or outcome)

    async def _close_late(self) -> None:
        """Close after an unforeseen end (a shutdown that ran out of grace, a defect)."""
        try:
            await self._close("failed_after_start")
        except BillUnavailableError as error:
            _log.error("call left open", reason=str(error), seq=self._entry.seq)

    def _report(self, outcome: Outcome) -> None:
        entry = self._entry
        self._desk.metrics.closed(
            surface=entry.surface,
            model=entry.model,
            outcome=outcome,
            input_tokens=entry.input_tokens,
            output_tokens=entry.output_tokens,
            cost_micro_usd=entry.cost_micro_usd,
        )
        _log.info(
            "call",
            seq=entry.seq,
            attempt_id=entry.attempt_id,
            model=entry.model,
            surface=entry.surface,
            input_tokens=entry.input_tokens,
            output_tokens=entry.output_tokens,
            cost_micro_usd=entry.cost_micro_usd,
            outcome=outcome,
        )
