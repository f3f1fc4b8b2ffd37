"""What an upstream is asked for is bounded where it reads it: how long an answer is, in which tier
it is served, how many numbers its vectors have."""

import json
import struct
from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest

from terrace_common.governance import Governance, Model
from terrace_common.prices import Price, Quote
from terrace_gateway.calls.send import MAX_ANSWER_BYTES
from terrace_gateway.calls.worst_case import worst_case
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.surfaces.embeddings import MAX_NUMBERS, MAX_NUMBERS_BASE64
from terrace_gateway.surfaces.upstream_request import UpstreamRequest

from .surface_calls import GOVERNANCE, MODELS, read

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "m", "messages": [USER]},
    "/v1/responses": {"model": "m", "input": "hi"},
    "/v1/messages": {"model": "m", "messages": [USER]},
}
PATHS = pytest.mark.parametrize("path", BODIES)


def at(
    path: str, body: dict[str, Any], *, relay: bool = False, **fields: object
) -> UpstreamRequest:
    """The request for a provider that is declared with ``fields``."""
    model = MODELS["sim-small"]
    plain = GOVERNANCE.model_dump(mode="json")
    for one in plain["providers"]:
        if one["name"] == model.provider:
            one.update(fields)
    return read(path, body).upstream(
        governance=Governance.model_validate(plain), model=model,
        attempt_id="att_1", traceparent="00-tp", max_output_tokens=50, relay=relay,
    )  # fmt: skip


OPENAI = ["https://api.openai.com/v1", "https://eu.api.openai.com:443/v1/"]
OTHERS = [
    "https://api.openai.com.example.com/v1", "https://example.com/api.openai.com",
    "https://example-api.openai.com/v1", "http://own-models:8000/v1",
]  # fmt: skip


@pytest.mark.parametrize("asked", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("declared", [None, "max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("api_base", [OPENAI[0], OTHERS[0]])
@pytest.mark.parametrize("relay", [True, False])
def test_the_output_limit_goes_where_the_upstream_reads_it(
    asked: str, declared: str | None, api_base: str, relay: bool
) -> None:
    body = {"model": "m", "messages": [USER], asked: 50}
    made = at("/v1/chat/completions", body, relay=relay,
              output_limit_field=declared, api_base=api_base)  # fmt: skip
    sent_body = json.loads(made.body)
    limits = {field: sent_body[field] for field in ("max_tokens", "max_completion_tokens")
              if field in sent_body}  # fmt: skip
    own = "max_completion_tokens" if api_base in OPENAI else "max_tokens"
    assert limits == {declared or own: 50}


@pytest.mark.parametrize("api_base", OPENAI + OTHERS)
@PATHS
def test_openai_itself_is_asked_for_the_tier_that_has_a_price(path: str, api_base: str) -> None:
    """Without the field a project may be set to serve and bill ``priority``."""
    made = at(path, BODIES[path], api_base=api_base)
    expected = "default" if api_base in OPENAI else None
    assert json.loads(made.body).get("service_tier") == expected


@PATHS
def test_a_limit_that_litellm_raises_is_reserved_as_it_is_sent(path: str) -> None:
    """It raises what is below 16 where it asks OpenAI for a response."""
    model = MODELS["sim-small"].model_copy(update={"max_output_tokens": 3})
    request = read(path, BODIES[path])

    def least(model: Model, *, relay: bool) -> int:
        made = request.upstream(
            governance=GOVERNANCE, model=model, attempt_id="a", traceparent="t",
            max_output_tokens=3, relay=relay,
        )  # fmt: skip
        assert made.max_output_tokens == 3
        return made.least_output_tokens

    assert least(model, relay=False) == 16
    assert least(MODELS["bedrock-claude"], relay=False) == 0
    if path == "/v1/chat/completions":
        assert least(model, relay=True) == 0


@pytest.mark.parametrize(("limit", "reserved"), [(3, 16), (50, 50)])
def test_the_worst_case_has_the_least_output(limit: int, reserved: int) -> None:
    price = Price(input_micro_usd_per_mtok=0, output_micro_usd_per_mtok=1_000_000)
    candidate: Any = SimpleNamespace(model=MODELS["sim-small"], quote=Quote("v", price))
    snapshot: Any = SimpleNamespace(governance=GOVERNANCE)
    made = UpstreamRequest("/", b"", 10, limit, least_output_tokens=16)
    found = worst_case(candidate, made, snapshot)
    assert (found.output_tokens, found.micro_usd) == (reserved, reserved)


@pytest.mark.parametrize(
    ("dimensions", "declared", "most"),
    [(None, None, 1024), (None, 1536, 1365), (1024, None, 2048), (8192, 1536, 256), (8, 8, 2048)],
)
def test_no_more_vectors_are_asked_for_than_an_answer_can_hold(
    dimensions: int | None, declared: int | None, most: int
) -> None:
    """It would be billed, and be too large to be taken."""
    update = {} if declared is None else {"dimensions": declared}
    model = MODELS["sim-embed"].model_copy(update=update)

    def made(texts: int) -> UpstreamRequest:
        body = {"model": "m", "input": ["a"] * texts, "dimensions": dimensions}
        return read("/v1/embeddings", body).upstream(
            governance=GOVERNANCE, model=model, attempt_id="a", traceparent="t",
            max_output_tokens=0,
        )  # fmt: skip

    assert len(json.loads(made(most).body)["input"]) == most
    if most < 2048:
        with pytest.raises(ApiError, match=f"at most {most} texts") as caught:
            made(most + 1)
        assert (caught.value.status, caught.value.param) == (400, "input")
    assert MAX_NUMBERS * 32 <= MAX_ANSWER_BYTES


def test_a_relay_that_answers_in_base64_may_be_asked_for_more() -> None:
    model = MODELS["sim-embed"].model_copy(update={"dimensions": 8192})
    for encoding, relay, most in (
        ("base64", True, 1024),
        ("base64", False, 256),
        ("float", True, 256),
    ):
        body = {"model": "m", "input": ["a"] * (most + 1), "encoding_format": encoding}
        with pytest.raises(ApiError, match=f"at most {most} texts"):
            read("/v1/embeddings", body).upstream(
                governance=GOVERNANCE, model=model, attempt_id="a", traceparent="t",
                max_output_tokens=0, relay=relay,
            )  # fmt: skip
    longest = len(b64encode(struct.pack("<f", 1.0) * 3000)) / 3000
    assert MAX_NUMBERS_BASE64 * (longest + 1) <= MAX_ANSWER_BYTES
