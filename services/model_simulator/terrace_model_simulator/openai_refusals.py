"""What the OpenAI face says no with: credentials, bodies, models, bounds and switches."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from terrace_model_simulator.credentials import Credentials
from terrace_model_simulator.incoming import (
    BodyTooLargeError,
    RefusedError,
    property_path,
    read_body,
)
from terrace_model_simulator.openai_format import openai_error
from terrace_model_simulator.prices import ModelEntry

STATUS_MESSAGES = {
    429: "Rate limit reached for requests. Please try again later.",
    500: "The server had an error while processing your request. Sorry about that!",
    503: "The engine is currently overloaded, please try again later.",
}
Body = TypeVar("Body", bound=BaseModel)

_UNKNOWN_PARAMETER = "extra_forbidden"


def unauthorized(request: Request, credentials: Credentials) -> Response | None:
    """The refusal of wrong credentials, or None."""
    presented = request.headers.get("authorization", "")
    if not presented:
        return openai_error(
            401,
            "You didn't provide an API key. You need to provide your API key in an "
            "Authorization header using Bearer auth (i.e. Authorization: Bearer YOUR_KEY).",
        )
    if not credentials.accepts_bearer(presented):
        return openai_error(401, "Incorrect API key provided.")
    return None


async def read_json(request: Request, schema: type[Body], *, limit: int) -> Body:
    """The body in that shape. Raises RefusedError."""
    try:
        body = await read_body(request, limit=limit)
        return schema.model_validate_json(body)
    except BodyTooLargeError as error:
        raise RefusedError(openai_error(413, "Request body too large.")) from error
    except ValidationError as error:
        raise RefusedError(_invalid_body(error)) from error


def model_not_found(name: str) -> Response:
    """The refusal of an unknown model."""
    return openai_error(
        404,
        f"The model `{name[:100]}` does not exist or you do not have access to it.",
        code="model_not_found",
    )


def out_of_bounds(name: str, asked: int, price: ModelEntry, input_tokens: int) -> Response | None:
    """The refusal of what the model cannot hold, or None. ``name`` is the limit's parameter."""
    if asked > price.max_output_tokens:
        return openai_error(
            400,
            f"{name} is too large: {asked}. This model supports at most "
            f"{price.max_output_tokens} completion tokens, whereas you provided {asked}.",
            param=name,
            code="invalid_value",
        )
    # A model needs room for one token of answer even if no limit was asked for.
    if input_tokens + max(asked, 1) > price.context_tokens:
        return openai_error(
            400,
            f"This model's maximum context length is {price.context_tokens} tokens. However, you "
            f"requested {input_tokens + asked} tokens ({input_tokens} in the messages, {asked} in "
            "the completion). Please reduce the length of the messages or completion.",
            param="messages",
            code="context_length_exceeded",
        )
    return None


def status_fault(status: int) -> Response:
    """The refusal that a switch asks for."""
    return openai_error(
        status,
        STATUS_MESSAGES.get(status, f"Simulated failure with status {status}."),
        headers={"retry-after": "1"} if status in {429, 503} else None,
    )


def _invalid_body(error: ValidationError) -> Response:
    path, kind, message = property_path(error)
    if kind == "json_invalid":
        return openai_error(400, f"We could not parse the JSON body of your request. ({message})")
    if kind == "missing":
        text, code = f"Missing required parameter: '{path}'.", "missing_required_parameter"
    elif kind == _UNKNOWN_PARAMETER:
        text, code = f"Unknown parameter: '{path}'.", "unknown_parameter"
    elif kind.endswith("_type"):
        text, code = f"Invalid type for '{path}': {message}.", "invalid_type"
    else:
        text, code = f"Invalid value for '{path}': {message}.", "invalid_value"
    return openai_error(400, text, param=path or None, code=code)
