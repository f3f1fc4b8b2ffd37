"""The table of admin routes: what each takes and answers, who may call it, and how it is called."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar, cast

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from terrace_common.governance import problem_text
from terrace_gateway.admin.admission import Admission, Role
from terrace_gateway.edge.errors import INVALID_REQUEST, REQUEST_TOO_LARGE, ApiError
from terrace_gateway.surfaces.json_body import invalid, parse_json_object

MAX_BODY_BYTES = 64 * 1024
MAX_VALUES = 1_000_000  # JSON values and keys of one body
PREFIX = "/admin/v1"

Body = TypeVar("Body", bound=BaseModel)


class AdminRefusal(Exception):  # noqa: N818  an answer, as ApiError is
    """A refusal with a code of the admin API's own, and plain data beside it."""

    def __init__(
        self, status: int, code: str, message: str, *, extra: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.extra = dict(extra or {})

    def answer(self) -> Response:
        """OpenAI's error shape, and the data."""
        error = {
            "message": self.message, "type": "invalid_request_error", "param": None,
            "code": self.code,
        }  # fmt: skip
        return json_answer({"error": error, **self.extra}, self.status)


@dataclass(frozen=True, slots=True)
class Query:
    """A query parameter, for the OpenAPI document."""

    name: str
    description: str
    kind: Literal["string", "integer"] = "string"


class AdminCall:
    """One authenticated call. What changes anything after it has waited asks ``admission`` again.
    An endpoint that raises ``AdmissionMovedError`` is called once more."""

    def __init__(self, request: Request, *, admission: Admission, max_body_bytes: int) -> None:
        self.request = request
        self.admission = admission
        self.path: Mapping[str, str] = {
            name: str(value) for name, value in request.path_params.items()
        }
        self._max_body_bytes = max_body_bytes
        self._body: bytearray | None = None

    @property
    def actor(self) -> str:
        """Who it is, for the audit record."""
        return self.admission.identity.actor

    @property
    def may_change(self) -> bool:
        """An ``admin`` calls, whatever the route needs."""
        return self.admission.identity.may("admin")

    async def read(self, model: type[Body]) -> Body:
        """The body. Raises ``ApiError`` that names the field; an unknown one lists the valid.

        A client may send it slowly: who was removed or stopped meanwhile is refused.
        """
        if self._body is None:
            self._body = await self._received()
            await self.admission.ask()
        body = self._body
        source = parse_json_object(bytes(body) or b"{}", max_depth=8, max_values=MAX_VALUES)
        try:
            return model.model_validate(source)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            message = f"{where}: {problem_text(first)}"
            if first["type"] == "extra_forbidden":
                message = f"unknown field {where}; valid: {', '.join(model.model_fields)}"
            raise ApiError(INVALID_REQUEST, message, param=where) from None

    async def _received(self) -> bytearray:
        body = bytearray()
        async for part in self.request.stream():
            body += part
            if len(body) > self._max_body_bytes:
                raise ApiError(
                    REQUEST_TOO_LARGE, f"the body is larger than {self._max_body_bytes} bytes"
                )
        return body

    def text(self, name: str) -> str | None:
        """A query parameter."""
        return self.request.query_params.get(name)

    def number(self, name: str, *, default: int, low: int, high: int) -> int:
        """A whole number of the query. Raises ``ApiError``."""
        text = self.request.query_params.get(name, str(default))
        if not (text.isdecimal() and len(text) < 20 and low <= int(text) <= high):
            raise invalid(f"{name} must be an integer from {low} to {high}", name)
        return int(text)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """``true`` or ``false`` of the query. Raises ``ApiError``."""
        text = self.request.query_params.get(name)
        if text is None:
            return default
        if text not in ("true", "false"):
            raise invalid(f"{name} must be true or false", name)
        return text == "true"


Endpoint = Callable[[AdminCall], Awaitable["dict[str, Any] | Response"]]


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One call of the admin API. ``path`` is below ``/admin/v1``."""

    method: Literal["GET", "POST", "PUT", "DELETE"]
    path: str
    endpoint: Endpoint
    summary: str
    role: Role
    body: type[BaseModel] | None = None
    answer: type[BaseModel] | str = "A JSON object."
    query: tuple[Query, ...] = ()
    status: int = 200
    max_body_bytes: int = MAX_BODY_BYTES
    changes_policy: bool = False
    """What it commits is for the policy in force: the answer comes once this replica goes by it, or
    says why it does not yet (``admin/pending.py``)."""


def json_answer(value: dict[str, Any], status: int = 200) -> Response:
    """JSON with times as RFC 3339 in UTC."""
    return JSONResponse(_plain(value), status_code=status)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, Mapping):
        items = cast("Mapping[str, object]", value).items()
        return {key: _plain(inner) for key, inner in items}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in cast("list[object]", value)]
    return value
