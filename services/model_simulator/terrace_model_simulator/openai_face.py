"""The OpenAI face: ``/v1/chat/completions`` and ``/v1/models``."""

from typing import cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from terrace_model_simulator.credentials import Credentials
from terrace_model_simulator.exchange import Desk, ModelResponse
from terrace_model_simulator.faults import FaultBoard
from terrace_model_simulator.incoming import (
    RefusedError,
    attempt_id_of,
    prepare_call,
)
from terrace_model_simulator.openai_format import (
    ChatCompletion,
    ChatCompletionStream,
    openai_error,
)
from terrace_model_simulator.openai_refusals import (
    STATUS_MESSAGES,
    model_not_found,
    out_of_bounds,
    read_json,
    status_fault,
    unauthorized,
)
from terrace_model_simulator.openai_schema import ChatCompletionRequest
from terrace_model_simulator.prices import ModelEntry, PriceTable

SURFACE = "chat_completions"
MODELS_CREATED = 1_760_000_000  # a fixed release date: the list must not change between calls


class OpenAIFace:
    """Routes of the OpenAI API over one desk."""

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
            Route("/v1/chat/completions", self.chat_completions, methods=["POST"]),
            Route("/v1/models", self.list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", self.get_model, methods=["GET"]),
        ]

    async def list_models(self, request: Request) -> Response:
        """The models on offer."""
        refusal = unauthorized(request, self._credentials)
        if refusal is not None:
            return refusal
        models = [_model_object(name) for name in self._prices.offered("openai")]
        return JSONResponse({"object": "list", "data": models})

    async def get_model(self, request: Request) -> Response:
        """One model."""
        refusal = unauthorized(request, self._credentials)
        if refusal is not None:
            return refusal
        name = cast("str", request.path_params["model"])
        if self._prices.find(name, "openai") is None:
            return model_not_found(name)
        return JSONResponse(_model_object(name))

    async def chat_completions(self, request: Request) -> Response:
        """A chat completion, plain or streamed."""
        try:
            return await self._chat(request)
        except RefusedError as refused:
            self._desk.metrics.refused(SURFACE, refused.model, refused.outcome)
            return refused.response

    async def _chat(self, request: Request) -> ModelResponse:
        wanted, price = await self._read(request)
        prompt = wanted.prompt()
        input_tokens = prompt.input_tokens()
        name = "max_completion_tokens" if wanted.max_completion_tokens else "max_tokens"
        asked = wanted.max_completion_tokens or wanted.max_tokens or 0
        refusal = _contradiction(wanted) or out_of_bounds(name, asked, price, input_tokens)
        if refusal is not None:
            raise RefusedError(refusal, model=wanted.model)
        faults = self._faults.take(wanted.model)
        if faults.status is not None:
            raise RefusedError(status_fault(faults.status), model=wanted.model, outcome="fault")

        metadata = wanted.metadata or {}
        call = prepare_call(
            request,
            prompt,
            model=wanted.model,
            price=price,
            surface=SURFACE,
            faults=faults,
            input_tokens=input_tokens,
            attempt_id=attempt_id_of(request, metadata, wanted.user),
            request_metadata=metadata,
        )
        answer_format = (
            ChatCompletionStream(wanted.model, call.answer, include_usage=wanted.include_usage)
            if wanted.stream
            else ChatCompletion(wanted.model, call.answer)
        )
        unavailable = openai_error(503, STATUS_MESSAGES[503], code="bill_unavailable")
        return ModelResponse(call, answer_format, self._desk, unavailable=unavailable)

    async def _read(self, request: Request) -> tuple[ChatCompletionRequest, ModelEntry]:
        refusal = unauthorized(request, self._credentials)
        if refusal is not None:
            raise RefusedError(refusal, outcome="unauthorized")
        wanted = await read_json(
            request, ChatCompletionRequest, limit=self._desk.settings.max_body_bytes
        )
        price = self._prices.find(wanted.model, "openai")
        if price is None:
            raise RefusedError(model_not_found(wanted.model))
        return wanted, price


def _model_object(name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": MODELS_CREATED,
        "owned_by": "terrace-simulator",
    }


def _contradiction(wanted: ChatCompletionRequest) -> Response | None:
    if wanted.stream_options is not None and not wanted.stream:
        return openai_error(
            400,
            "The 'stream_options' parameter is only allowed when 'stream' is enabled.",
            param="stream_options",
        )
    if wanted.max_tokens is not None and wanted.max_completion_tokens is not None:
        return openai_error(
            400,
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    if wanted.tool_choice not in (None, "none") and not wanted.tools:
        return openai_error(
            400,
            "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are "
            "specified.",
            param="tool_choice",
        )
    return None
