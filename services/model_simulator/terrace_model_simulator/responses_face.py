"""The rest of the OpenAI face: responses and their token counter, text completions, embeddings."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from terrace_model_simulator.completions_format import (
    Embeddings,
    TextCompletion,
    TextCompletionStream,
)
from terrace_model_simulator.completions_schema import CompletionRequest, EmbeddingsRequest
from terrace_model_simulator.credentials import Credentials
from terrace_model_simulator.exchange import AnswerFormat, Desk, ModelCall, ModelResponse
from terrace_model_simulator.faults import FaultBoard
from terrace_model_simulator.generation import Answer
from terrace_model_simulator.incoming import RefusedError, attempt_id_of, prepare_call
from terrace_model_simulator.openai_format import openai_error
from terrace_model_simulator.openai_refusals import (
    STATUS_MESSAGES,
    model_not_found,
    out_of_bounds,
    read_json,
    status_fault,
    unauthorized,
)
from terrace_model_simulator.prices import ModelEntry, PriceTable
from terrace_model_simulator.prompt import Message, Prompt, Surface
from terrace_model_simulator.responses_format import Response as ResponseAnswer
from terrace_model_simulator.responses_format import ResponseStream
from terrace_model_simulator.responses_schema import InputTokensRequest, ResponsesRequest

Body = TypeVar("Body", bound=BaseModel)


class ResponsesFace:
    """Routes over one desk."""

    def __init__(
        self, desk: Desk, credentials: Credentials, prices: PriceTable, faults: FaultBoard
    ) -> None:
        self._desk = desk
        self._credentials = credentials
        self._prices = prices
        self._faults = faults

    def routes(self) -> list[BaseRoute]:
        """What to mount at the root."""
        return [
            Route("/v1/responses", self.responses, methods=["POST"]),
            Route("/v1/responses/input_tokens", self.input_tokens, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/embeddings", self.embeddings, methods=["POST"]),
        ]

    async def responses(self, request: Request) -> Response:
        """A response, plain or streamed."""
        try:
            wanted = await self._read(request, ResponsesRequest)
            limit = wanted.max_output_tokens
            call = self._call(
                request, wanted.model, wanted.prompt(), "responses",
                limit=("max_output_tokens", limit), metadata=wanted.metadata or {},
                user=wanted.user,
            )  # fmt: skip
        except RefusedError as refused:
            return self._refused("responses", refused)
        form = ResponseStream if wanted.stream else ResponseAnswer
        return self._response(call, form(wanted.model, call.answer, max_output_tokens=limit))

    async def input_tokens(self, request: Request) -> Response:
        """How many tokens a response's input has; unbilled."""
        try:
            wanted = await self._read(request, InputTokensRequest)
            self._price(wanted.model)
        except RefusedError as refused:
            return self._refused("responses", refused)
        tokens = wanted.prompt().input_tokens()
        return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens})

    async def completions(self, request: Request) -> Response:
        """A text completion, plain or streamed."""
        try:
            wanted = await self._read(request, CompletionRequest)
            call = self._call(
                request, wanted.model, wanted.prompt_of(), "completions",
                limit=("max_tokens", wanted.max_tokens), metadata={}, user=wanted.user,
            )  # fmt: skip
        except RefusedError as refused:
            return self._refused("completions", refused)
        if not wanted.stream:
            return self._response(call, TextCompletion(wanted.model, call.answer))
        stream = TextCompletionStream(wanted.model, call.answer, include_usage=wanted.include_usage)
        return self._response(call, stream)

    async def embeddings(self, request: Request) -> Response:
        """Vectors of texts."""
        try:
            wanted = await self._read(request, EmbeddingsRequest)
            call = self._call(
                request, wanted.model, Prompt((Message("user", ""),)), "embeddings",
                limit=("input", None), metadata={}, user=wanted.user,
                input_tokens=wanted.input_tokens(),
            )  # fmt: skip
        except RefusedError as refused:
            return self._refused("embeddings", refused)
        call = replace(call, answer=Answer((), "stop"))
        packed = wanted.encoding_format == "base64"
        vectors = Embeddings(
            wanted.model, wanted.texts, dimensions=wanted.dimensions, packed=packed
        )
        return self._response(call, vectors)

    async def _read(self, request: Request, schema: type[Body]) -> Body:
        refusal = unauthorized(request, self._credentials)
        if refusal is not None:
            raise RefusedError(refusal, outcome="unauthorized")
        return await read_json(request, schema, limit=self._desk.settings.max_body_bytes)

    def _price(self, model: str) -> ModelEntry:
        price = self._prices.find(model, "openai")
        if price is None:
            raise RefusedError(model_not_found(model))
        return price

    def _call(
        self, request: Request, model: str, prompt: Prompt, surface: Surface, *,
        limit: tuple[str, int | None], metadata: Mapping[str, str], user: str | None,
        input_tokens: int | None = None,
    ) -> ModelCall:  # fmt: skip
        price = self._price(model)
        counted = prompt.input_tokens() if input_tokens is None else input_tokens
        refusal = out_of_bounds(limit[0], limit[1] or 0, price, counted)
        if refusal is not None:
            raise RefusedError(refusal, model=model)
        faults = self._faults.take(model)
        if faults.status is not None:
            raise RefusedError(status_fault(faults.status), model=model, outcome="fault")
        return prepare_call(
            request,
            prompt,
            model=model,
            price=price,
            surface=surface,
            faults=faults,
            input_tokens=counted,
            attempt_id=attempt_id_of(request, metadata, user),
            request_metadata=metadata,
        )

    def _response(self, call: ModelCall, answer_format: AnswerFormat) -> Response:
        unavailable = openai_error(503, STATUS_MESSAGES[503], code="bill_unavailable")
        return ModelResponse(call, answer_format, self._desk, unavailable=unavailable)

    def _refused(self, surface: Surface, refused: RefusedError) -> Response:
        self._desk.metrics.refused(surface, refused.model, refused.outcome)
        return refused.response
