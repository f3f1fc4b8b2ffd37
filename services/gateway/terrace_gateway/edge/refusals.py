"""What clients are told when the authority or the provider says no."""

import json
import re
from collections.abc import Collection
from typing import cast

from terrace_gateway.calls.ports import Cap, CapRefusal
from terrace_gateway.edge.errors import (
    BUDGET_EXHAUSTED,
    INVALID_REQUEST,
    RATE_LIMITED,
    UPSTREAM_ERROR,
    UPSTREAM_TIMEOUT,
    ApiError,
)
from terrace_gateway.surfaces.request import FIELDS_OF
from terrace_gateway.upstream.header_numbers import whole_seconds

MAX_RETRY_AFTER_SECONDS = 24 * 3600  # a provider's daily quota

_FIELD = re.compile(r"([A-Za-z_]+)(?:\[(\d{1,5})\]|\.(\d{1,5})(?!\d))?")


_UNITS = {
    "micro_usd": "money",
    "requests": "requests",
    "input_tokens": "input tokens",
    "output_tokens": "output tokens",
    "total_tokens": "tokens",
}


def cap_refusal_error(
    refusal: CapRefusal, *, worst_case_micro_usd: int = 0, max_output_tokens: int = 0
) -> ApiError:
    """What a client is told when a cap would be passed.

    ``worst_case_micro_usd`` and ``max_output_tokens`` are those of the refused call.
    """
    cap = refusal.cap
    whose = f"the {cap.scope}'s"
    if cap.dimension == "concurrency":
        return ApiError(
            RATE_LIMITED,
            f"{whose} limit of {cap.amount} calls at once is reached",
            retry_after_seconds=1,
        )
    left = max(0, refusal.remaining)
    if cap.dimension == "micro_usd":
        text = (
            f"this call may cost up to {_usd(worst_case_micro_usd)} USD"
            f" (input bound + max_tokens {max_output_tokens});"
            f" {_usd(left)} USD of {whose} budget{_per(cap)} is left beside running calls;"
            " lower max_tokens or ask for a larger budget"
        )
    else:
        text = (
            f"this call needs up to {refusal.needed} {_UNITS[cap.dimension]};"
            f" {left} of {whose} {cap.amount}{_per(cap)} are left beside running calls"
        )
    if refusal.retry_after_seconds is None:
        return ApiError(BUDGET_EXHAUSTED, text)
    return ApiError(RATE_LIMITED, text, retry_after_seconds=max(1, refusal.retry_after_seconds))


def _per(cap: Cap) -> str:
    window = cap.window
    if window.kind == "lifetime":
        return ""
    if window.kind == "calendar":
        return f" per {window.unit}"
    return f" per {window.seconds} s"


def upstream_error(
    status: int, retry_after: str | None, body: bytes = b"", *, surface: str = "chat"
) -> ApiError:
    """What a client is told about an error status; the provider's own text stays inside.

    A field that the provider names is told if it is one of ``surface``'s.
    """
    if status in (400, 413, 422):
        message = "the model's provider refused the request as invalid"
        field = _named_field(body, FIELDS_OF[surface])
        return ApiError(
            INVALID_REQUEST, f"{message}: see {field}" if field else message, param=field
        )
    if status == 429:
        seconds = whole_seconds(retry_after or "", most=MAX_RETRY_AFTER_SECONDS)
        return ApiError(
            RATE_LIMITED,
            "the model's provider is throttling",
            retry_after_seconds=1 if seconds is None else seconds,
        )
    if status in (408, 504):
        return ApiError(UPSTREAM_TIMEOUT, "the model's provider did not answer in time")
    return ApiError(UPSTREAM_ERROR, f"the model's provider failed (status {status})")


def _named_field(body: bytes, fields: Collection[str]) -> str | None:
    """The field that an error of OpenAI's shape names: one that we take, and its index at most."""
    try:
        answer: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error = cast("dict[str, object]", answer).get("error") if isinstance(answer, dict) else None
    param = cast("dict[str, object]", error).get("param") if isinstance(error, dict) else None
    found = _FIELD.match(param) if isinstance(param, str) else None
    if found is None or found[1] not in fields:
        return None
    index = found[2] or found[3]
    return f"{found[1]}[{index}]" if index else found[1]


def _usd(micro_usd: int) -> str:
    return f"{micro_usd // 1_000_000}.{micro_usd % 1_000_000:06}"
