"""Refusals as clients see them: in their surface's shape, one code per cause, nothing internal."""

import json
from typing import Literal

ErrorShape = Literal["openai", "anthropic", "bedrock"]

INVALID_REQUEST = "invalid_request"
UNSUPPORTED_PARAMETER = "unsupported_parameter"
INVALID_API_KEY = "invalid_api_key"
MODEL_NOT_ALLOWED = "model_not_allowed"
POLICY_DENIED = "policy_denied"
CONTENT_BLOCKED = "content_blocked"
GUARDRAIL_UNAVAILABLE = "guardrail_unavailable"
UNPRICED = "unpriced"
KILLED = "killed"
NO_CANDIDATE = "no_candidate"
NOT_SERVABLE = "not_servable"
MODEL_UNAVAILABLE = "model_unavailable"
MODEL_NOT_FOUND = "model_not_found"
ROUTE_NOT_FOUND = "route_not_found"
REQUEST_TOO_LARGE = "request_too_large"
BUDGET_EXHAUSTED = "budget_exhausted"
RATE_LIMITED = "rate_limited"
UPSTREAM_ERROR = "upstream_error"
UPSTREAM_TIMEOUT = "upstream_timeout"
AUTHORITY_UNAVAILABLE = "authority_unavailable"
INTERNAL_ERROR = "internal_error"

_STATUS = {
    INVALID_REQUEST: 400,
    UNSUPPORTED_PARAMETER: 400,
    INVALID_API_KEY: 401,
    MODEL_NOT_ALLOWED: 403,
    POLICY_DENIED: 403,
    CONTENT_BLOCKED: 400,
    GUARDRAIL_UNAVAILABLE: 503,
    UNPRICED: 400,
    KILLED: 403,
    NO_CANDIDATE: 503,
    NOT_SERVABLE: 400,
    MODEL_UNAVAILABLE: 503,
    MODEL_NOT_FOUND: 404,
    ROUTE_NOT_FOUND: 404,
    REQUEST_TOO_LARGE: 413,
    BUDGET_EXHAUSTED: 429,
    RATE_LIMITED: 429,
    INTERNAL_ERROR: 500,
    UPSTREAM_ERROR: 502,
    AUTHORITY_UNAVAILABLE: 503,
    UPSTREAM_TIMEOUT: 504,
}
_AWS_EXCEPTIONS = {  # those that bedrock-runtime's service model has
    400: "ValidationException",
    401: "AccessDeniedException",
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    413: "ValidationException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
    504: "ModelTimeoutException",
}
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {413: "request_too_large", 504: "timeout_error"}


class ApiError(Exception):
    """A refusal with one of the codes above. ``message`` is shown to the client as it is."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_seconds = retry_after_seconds
        self.status = _STATUS[code]

    def body(self, shape: ErrorShape = "openai") -> bytes:
        """JSON body in the shape of the surface. All have ``error`` with message, type, param and
        code; Anthropic's is marked as an error, Bedrock's has AWS's ``message`` beside it."""
        error = {
            "message": self.message,
            "type": self._kind(shape),
            "param": self.param,
            "code": self.code,
        }
        beside: dict[str, object] = {}
        if shape == "anthropic":
            beside = {"type": "error"}
        elif shape == "bedrock":
            beside = {"message": self.message}
        return json.dumps({**beside, "error": error}).encode()

    def headers(self, shape: ErrorShape = "openai") -> list[tuple[bytes, bytes]]:
        """Response headers that belong to the refusal; for Bedrock's clients the exception too."""
        headers = [(b"content-type", b"application/json")]
        if shape == "bedrock":
            exception = _AWS_EXCEPTIONS.get(self.status, "InternalServerException")
            headers.append((b"x-amzn-errortype", exception.encode()))
        if self.retry_after_seconds is not None:
            headers.append((b"retry-after", str(self.retry_after_seconds).encode()))
        if self.code == BUDGET_EXHAUSTED:
            headers.append((b"x-should-retry", b"false"))  # OpenAI's SDKs would ask again at once
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return headers

    def _kind(self, shape: ErrorShape) -> str:
        if shape == "anthropic" and self.status in _ANTHROPIC_TYPES:
            return _ANTHROPIC_TYPES[self.status]
        if self.status >= 500:
            return "api_error"
        return _TYPES.get(self.status, "invalid_request_error")
