"""What both faces need of an HTTP request: its body within bounds, its attempt id."""

from collections.abc import Mapping

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from terrace_common.names import ATTEMPT_ID_HEADER
from terrace_model_simulator.exchange import ModelCall
from terrace_model_simulator.faults import FaultsOfCall
from terrace_model_simulator.generation import answer
from terrace_model_simulator.metrics import UNKNOWN_MODEL
from terrace_model_simulator.prices import ModelEntry
from terrace_model_simulator.prompt import Prompt, Surface

MAX_ATTEMPT_ID_LENGTH = 200
USER_ATTEMPT_PREFIX = "attempt:"
_METADATA_NAMES = ("terrace-attempt-id", "terrace_attempt_id")
_TRACE_HEADERS = ("traceparent", "tracestate")


class BodyTooLargeError(Exception):
    """The body has more bytes than the simulator takes."""


class RefusedError(Exception):
    """A call that is answered without the model: what to send, and how to count it.

    ``model`` is a name from the price table or UNKNOWN_MODEL: it becomes a metric's label.
    """

    def __init__(
        self, response: Response, *, model: str = UNKNOWN_MODEL, outcome: str = "refused"
    ) -> None:
        super().__init__(outcome)
        self.response = response
        self.model = model
        self.outcome = outcome


async def read_body(request: Request, *, limit: int) -> bytes:
    """The whole body. Raises BodyTooLargeError as soon as ``limit`` bytes are passed."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise BodyTooLargeError
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise BodyTooLargeError
        parts.append(part)
    return b"".join(parts)


def attempt_id_of(
    request: Request, metadata: Mapping[str, str], user: str | None = None
) -> str | None:
    """The caller's attempt id: header, else metadata, else a ``user`` that begins ``attempt:``.

    In metadata under ``terrace_attempt_id`` or ``terrace-attempt-id``.
    """
    found = request.headers.get(ATTEMPT_ID_HEADER) or next(
        (metadata[name] for name in _METADATA_NAMES if metadata.get(name)), None
    )
    if not found and user is not None and user.startswith(USER_ATTEMPT_PREFIX):
        found = user.removeprefix(USER_ATTEMPT_PREFIX)
    return found[:MAX_ATTEMPT_ID_LENGTH] if found else None


def prepare_call(
    request: Request,
    prompt: Prompt,
    *,
    model: str,
    price: ModelEntry,
    surface: Surface,
    faults: FaultsOfCall,
    input_tokens: int,
    attempt_id: str | None,
    request_metadata: Mapping[str, str],
) -> ModelCall:
    """Let the model answer; nothing is sent or billed yet.

    Input must be below the model's context; the answer takes at most what is left of it.
    """
    limit = min(
        prompt.max_tokens or price.max_output_tokens,
        price.max_output_tokens,
        price.context_tokens - input_tokens,
    )
    return ModelCall(
        attempt_id=attempt_id,
        model=model,
        price=price,
        surface=surface,
        input_tokens=input_tokens,
        answer=answer(model, prompt, limit=limit),
        faults=faults,
        request_metadata=request_metadata,
        trace_headers={
            name: request.headers[name] for name in _TRACE_HEADERS if name in request.headers
        },
    )


def property_path(error: ValidationError) -> tuple[str, str, str]:
    """Where the first error of a body is (``messages[0].content``), its kind, and its message."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.replace("_", "").isalnum() and part not in {"str", "dict", "list"}:
            path += f".{part}" if path else part
        else:
            break
    return path, first["type"], first["msg"]
