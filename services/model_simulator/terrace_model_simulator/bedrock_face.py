"""The Bedrock Runtime face: Converse, ConverseStream, InvokeModel and its response stream."""

import json
from collections.abc import Mapping
from itertools import pairwise
from typing import Literal, cast

from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from terrace_model_simulator.bedrock_format import (
    AnthropicMessageAnswer,
    AnthropicStream,
    Converse,
    ConverseStream,
    bedrock_error,
)
from terrace_model_simulator.bedrock_schema import (
    AnthropicRequest,
    ConverseRequest,
    CountTokensRequest,
    RequestMetadata,
)
from terrace_model_simulator.credentials import Credentials
from terrace_model_simulator.exchange import AnswerFormat, Desk, ModelCall, ModelResponse
from terrace_model_simulator.faults import FaultBoard, FaultsOfCall
from terrace_model_simulator.incoming import (
    BodyTooLargeError,
    RefusedError,
    attempt_id_of,
    prepare_call,
    property_path,
    read_body,
)
from terrace_model_simulator.prices import ModelEntry, PriceTable
from terrace_model_simulator.prompt import Prompt, Surface
from terrace_model_simulator.sigv4 import SignatureError, verify_signature

METADATA_HEADER = "x-amzn-bedrock-request-metadata"

Operation = Literal["converse", "converse-stream", "invoke", "invoke-with-response-stream"]

_SURFACES: dict[Operation, Surface] = {
    "converse": "converse",
    "converse-stream": "converse_stream",
    "invoke": "invoke",
    "invoke-with-response-stream": "invoke_stream",
}
_STATUS_ERRORS = {
    400: "ValidationException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    424: "ModelErrorException",
    429: "ThrottlingException",
    500: "InternalServerException",
    503: "ServiceUnavailableException",
}
_STATUS_MESSAGES = {
    429: "Too many requests, please wait before trying again.",
    503: "The service isn't currently available. Try again later.",
}
_METADATA = TypeAdapter[dict[str, str]](RequestMetadata)


class BedrockFace:
    """Routes of the Bedrock Runtime API over one desk."""

    def __init__(
        self, desk: Desk, credentials: Credentials, prices: PriceTable, faults: FaultBoard
    ) -> None:
        self._desk = desk
        self._credentials = credentials
        self._prices = prices
        self._faults = faults

    def routes(self) -> list[BaseRoute]:
        """What to mount at the root. Model ids may hold slashes (ARNs)."""
        return [
            *(
                Route(f"/model/{{model:path}}/{operation}", self._endpoint, methods=["POST"])
                for operation in _SURFACES
            ),
            Route("/model/{model:path}/count-tokens", self._count_tokens, methods=["POST"]),
        ]

    async def _count_tokens(self, request: Request) -> Response:
        """CountTokens of what converse would be asked; unbilled."""
        try:
            body = await read_body(request, limit=self._desk.settings.max_body_bytes)
            self._authenticate(request, body)
            model = cast("str", request.path_params["model"])
            if self._prices.find(model, "bedrock") is None:
                raise _validation_error("The provided model identifier is invalid.")
            wanted = CountTokensRequest.model_validate_json(body)
        except BodyTooLargeError:
            return _validation_error("Input is too long for requested model.").response
        except ValidationError as error:
            return _validation_error(f"The body is not valid: {property_path(error)[2]}").response
        except RefusedError as refused:
            return refused.response
        return JSONResponse({"inputTokens": wanted.input.converse.prompt().input_tokens()})

    async def _endpoint(self, request: Request) -> Response:
        operation = cast("Operation", request.url.path.rpartition("/")[2])
        try:
            return await self._call(request, operation)
        except RefusedError as refused:
            self._desk.metrics.refused(_SURFACES[operation], refused.model, refused.outcome)
            return refused.response

    async def _call(self, request: Request, operation: Operation) -> ModelResponse:
        try:
            body = await read_body(request, limit=self._desk.settings.max_body_bytes)
        except BodyTooLargeError as error:
            raise _validation_error("Input is too long for requested model.") from error
        self._authenticate(request, body)
        model = cast("str", request.path_params["model"])
        price = self._prices.find(model, "bedrock")
        if price is None:
            raise _validation_error("The provided model identifier is invalid.")
        prompt, metadata, user = _parse(operation, body, model)
        metadata = {**_header_metadata(request), **metadata}
        input_tokens = prompt.input_tokens()
        _check_bounds(prompt, price, input_tokens, model)

        faults = self._faults.take(model)
        if faults.status is not None:
            raise RefusedError(_status_fault(faults), model=model, outcome="fault")
        call = prepare_call(
            request,
            prompt,
            model=model,
            price=price,
            surface=_SURFACES[operation],
            faults=faults,
            input_tokens=input_tokens,
            attempt_id=attempt_id_of(request, metadata, user),
            request_metadata=metadata,
        )
        unavailable = bedrock_error(503, _STATUS_ERRORS[503], _STATUS_MESSAGES[503])
        return ModelResponse(call, _format(operation, call), self._desk, unavailable=unavailable)

    def _authenticate(self, request: Request, body: bytes) -> None:
        authorization = request.headers.get("authorization", "")
        if not authorization:
            error_type, message = (
                "MissingAuthenticationTokenException",
                "Missing Authentication Token",
            )
        elif authorization.startswith("Bearer "):
            if self._credentials.accepts_bearer(authorization):
                return
            error_type = "AccessDeniedException"
            message = "Authentication failed: Please make sure your API Key is valid."
        else:
            try:
                self._verify(request, body)
            except SignatureError as error:
                error_type, message = error.code, str(error)
            else:
                return
        raise RefusedError(bedrock_error(403, error_type, message), outcome="unauthorized")

    def _verify(self, request: Request, body: bytes) -> None:
        scope = request.scope
        query = cast("bytes", scope["query_string"]).decode("latin-1")
        target = cast("bytes", scope["raw_path"]).decode("latin-1")
        verify_signature(
            method=request.method,
            raw_target=f"{target}?{query}" if query else target,
            headers=request.headers,
            body=body,
            access_key_id=self._credentials.aws_access_key_id,
            secret_access_key=self._credentials.aws_secret_access_key,
        )


def _parse(
    operation: Operation, body: bytes, model: str
) -> tuple[Prompt, Mapping[str, str], str | None]:
    """Prompt, request metadata and the end user's id."""
    try:
        if operation in {"converse", "converse-stream"}:
            converse = ConverseRequest.model_validate_json(body)
            _check_turns(converse, model)
            return converse.prompt(), converse.requestMetadata, None
        if not model.startswith("anthropic."):
            raise _validation_error("Only Anthropic models can be invoked here.", model)
        invoke = AnthropicRequest.model_validate_json(body)
        return invoke.prompt(), {}, invoke.metadata.user_id
    except ValidationError as error:
        path, kind, message = property_path(error)
        if kind == "json_invalid":
            raise RefusedError(
                bedrock_error(400, "SerializationException", f"Malformed JSON: {message}"),
                model=model,
            ) from error
        raise _validation_error(
            f"The value at {path or 'the body'} is not valid: {message}", model
        ) from error


def _check_turns(wanted: ConverseRequest, model: str) -> None:
    roles = [message.role for message in wanted.messages]
    if roles[0] != "user":
        raise _validation_error(
            "A conversation must start with a user message. Try again with a conversation that "
            "starts with a user message.",
            model,
        )
    if any(before == after for before, after in pairwise(roles)):
        raise _validation_error(
            "A conversation must alternate between user and assistant roles. Make sure the "
            "conversation alternates between user and assistant roles and try again.",
            model,
        )


def _check_bounds(prompt: Prompt, price: ModelEntry, input_tokens: int, model: str) -> None:
    if (prompt.max_tokens or 0) > price.max_output_tokens:
        raise _validation_error(
            f"The maximum tokens you requested exceeds the model limit of "
            f"{price.max_output_tokens}. Try again with a maximum tokens value that is lower than "
            f"{price.max_output_tokens}.",
            model,
        )
    if input_tokens + max(prompt.max_tokens or 0, 1) > price.context_tokens:
        raise _validation_error("Input is too long for requested model.", model)


def _header_metadata(request: Request) -> Mapping[str, str]:
    """Metadata of an InvokeModel call, which has no member for it in its body."""
    text = request.headers.get(METADATA_HEADER)
    if text is None:
        return {}
    try:
        return _METADATA.validate_python(json.loads(text))
    except ValueError as error:
        raise _validation_error(f"{METADATA_HEADER} must be a JSON object of strings.") from error


def _format(operation: Operation, call: ModelCall) -> AnswerFormat:
    if operation == "converse":
        return Converse(call.answer)
    if operation == "converse-stream":
        return ConverseStream(call.answer)
    if operation == "invoke":
        return AnthropicMessageAnswer(call.model, call.answer, input_tokens=call.input_tokens)
    return AnthropicStream(call.model, call.answer, input_tokens=call.input_tokens)


def _status_fault(faults: FaultsOfCall) -> Response:
    status = faults.status or 500
    error_type = faults.error_type or _STATUS_ERRORS.get(status, "InternalServerException")
    message = _STATUS_MESSAGES.get(status, f"Simulated failure with status {status}.")
    return bedrock_error(status, error_type, message)


def _validation_error(message: str, model: str | None = None) -> RefusedError:
    response = bedrock_error(400, "ValidationException", message)
    return RefusedError(response) if model is None else RefusedError(response, model=model)
