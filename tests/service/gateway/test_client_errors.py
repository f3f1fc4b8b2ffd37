"""Proof 9, errors: what the clients raise for each refusal of ours is what they raise for the real
service's, and they try again where that can help and only there."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import boto3
import openai
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError
from gateway_rig.fake_upstream import Behaviour, FakeUpstream
from gateway_rig.guard import InProcessGuard
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from terrace_gateway.calls.ports import AuthorityUnavailableError

USER: Any = [{"role": "user", "content": "hi"}]
TURN: Any = [{"role": "user", "content": [{"text": "hi"}]}]
RETRY_AFTER = 50  # seconds: the model is still away when the client asks again
Prepare = Callable[["World"], Awaitable[None]]


@dataclass
class World:
    """A guard before the fake translator, and what the clients are told to send."""

    guard: InProcessGuard
    upstream: FakeUpstream
    patch: pytest.MonkeyPatch
    key: str = ""
    model: str = "bedrock-claude"
    retries: int = 0
    odd: bool = False
    """Whether a field is sent that is refused."""

    def refusals(self, code: str) -> float:
        """How many the guard has counted."""
        return self.guard.runtime.metrics.denied.labels(code)._value.get()


async def bad_field(world: World) -> None:
    world.odd = True


async def wrong_key(world: World) -> None:
    world.key = "tk-" + "b" * 43


async def other_model(world: World) -> None:
    world.key = await world.guard.key(models=["sim-large"])


async def no_such_model(world: World) -> None:
    world.model = "nope"


async def no_money(world: World) -> None:
    world.key = await world.guard.key(budget_micro_usd=1)


async def no_calls_left(world: World) -> None:
    world.key = await world.guard.key(requests_per_minute=0)  # one that no clock fills again


async def throttled(world: World) -> None:
    world.upstream.behaviour = Behaviour(status=429, headers={"retry-after": str(RETRY_AFTER)})


async def defect(world: World) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("internal text")

    world.patch.setattr(world.guard.runtime.matcher, "match", broken)


async def provider_down(world: World) -> None:
    world.upstream.behaviour = Behaviour(status=500)


async def no_authority(world: World) -> None:
    async def away(*_: object) -> None:
        raise AuthorityUnavailableError

    world.patch.setattr(world.guard.runtime.authenticators, "authenticate", away)


# What is done -> our status and code, the SDKs' class, boto3's, and whether trying again may help.
CASES: dict[str, tuple[Prepare, int, str, str, str, bool]] = {
    "400": (bad_field, 400, "unsupported_parameter", "BadRequestError", "ValidationException",
            False),
    "401": (wrong_key, 401, "invalid_api_key", "AuthenticationError", "AccessDeniedException",
            False),
    "403": (other_model, 403, "model_not_allowed", "PermissionDeniedError",
            "AccessDeniedException", False),
    "404": (no_such_model, 404, "model_not_found", "NotFoundError", "ResourceNotFoundException",
            False),
    "429 budget": (no_money, 429, "budget_exhausted", "RateLimitError", "ThrottlingException",
                   False),
    "429 window": (no_calls_left, 429, "rate_limited", "RateLimitError", "ThrottlingException",
                   True),
    "429 provider": (throttled, 429, "rate_limited", "RateLimitError", "ThrottlingException",
                     True),
    "500": (defect, 500, "internal_error", "InternalServerError", "InternalServerException", True),
    "502": (provider_down, 502, "upstream_error", "InternalServerError",
            "InternalServerException", True),
    "503": (no_authority, 503, "authority_unavailable", "InternalServerError",
            "ServiceUnavailableException", True),
}  # fmt: skip


@pytest.fixture
async def world(
    make_guard: Callable[..., Awaitable[InProcessGuard]], governance_text: str,
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch,
) -> World:  # fmt: skip
    patient = "    breaker: {unknowns: 1000, least_calls: 1000}\n    kind: bedrock\n"
    guard = await make_guard(governance=governance_text.replace("    kind: bedrock\n", patient))
    return World(guard, upstream, monkeypatch, await guard.key())


def openai_chat(world: World, *, stream: bool = False) -> None:
    extra = {"n": 2} if world.odd else {}
    url = f"{world.guard.public_url}/v1"
    with openai.OpenAI(base_url=url, api_key=world.key, max_retries=world.retries) as client:
        answer: Any = client.chat.completions.create(
            model=world.model, messages=USER, max_tokens=40, stream=stream, extra_body=extra
        )
        list(answer)


def openai_responses(world: World, *, stream: bool = False) -> None:
    extra = {"background": True} if world.odd else {}
    url = f"{world.guard.public_url}/v1"
    with openai.OpenAI(base_url=url, api_key=world.key, max_retries=world.retries) as client:
        answer: Any = client.responses.create(
            model=world.model, input="hi", max_output_tokens=40, stream=stream, extra_body=extra
        )
        list(answer)


def claude(world: World, *, stream: bool = False) -> None:
    extra = {"container": "x"} if world.odd else {}
    with anthropic.Anthropic(
        base_url=world.guard.public_url, api_key=world.key, max_retries=world.retries
    ) as client:
        answer: Any = client.messages.create(
            model=world.model, messages=USER, max_tokens=40, stream=stream, extra_body=extra
        )
        list(answer)


def langchain_openai(world: World, *, stream: bool = False) -> None:
    model = ChatOpenAI(
        model=world.model, base_url=f"{world.guard.public_url}/v1", api_key=SecretStr(world.key),
        max_retries=world.retries, extra_body={"best_of": 2} if world.odd else None,
    )  # fmt: skip
    list(model.stream("hi")) if stream else model.invoke("hi")


def langchain_anthropic(world: World, *, stream: bool = False) -> None:
    model = ChatAnthropic(
        model_name=world.model, base_url=world.guard.public_url, api_key=SecretStr(world.key),
        max_retries=world.retries, max_tokens_to_sample=40, timeout=60, stop=None,
        model_kwargs={"extra_body": {"container": "x"}} if world.odd else {},
    )  # fmt: skip
    list(model.stream("hi")) if stream else model.invoke("hi")


@contextmanager
def bedrock(world: World) -> Iterator[Any]:
    client = boto3.client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=world.guard.public_url,
        config=Config(
            retries={"total_max_attempts": 1 + world.retries}, signature_version=UNSIGNED
        ),
    )  # fmt: skip

    def add_key(request: Any, **_: Any) -> None:  # botocore sends bearer tokens over HTTPS only
        request.headers["Authorization"] = f"Bearer {world.key}"

    client.meta.events.register("before-send.bedrock-runtime", add_key)
    with closing(client):
        yield client


SDKS: dict[str, tuple[Any, Callable[..., None]]] = {
    "openai chat": (openai, openai_chat),
    "openai responses": (openai, openai_responses),
    "anthropic": (anthropic, claude),
    "langchain openai": (openai, langchain_openai),
    "langchain anthropic": (anthropic, langchain_anthropic),
}


@pytest.mark.parametrize("case", CASES)
async def test_each_refusal_is_the_client_s_own_exception(world: World, case: str) -> None:
    prepare, status, code, expected, aws, _ = CASES[case]
    await prepare(world)
    for name, (sdk, call) in SDKS.items():
        with pytest.raises(getattr(sdk, expected)) as caught:
            await asyncio.to_thread(call, world)
        error: Any = caught.value
        assert error.status_code == status, name
        told = error.body["error"] if sdk is anthropic else error.body
        assert told["code"] == code, name
        assert told["message"] in str(error)
        assert "internal" not in told["message"]
        assert error.request_id or error.response.headers["x-terrace-request-id"]

    def converse() -> None:
        with bedrock(world) as client:
            odd = {"additionalModelRequestFields": {"k": 1}} if world.odd else {}
            with pytest.raises(ClientError) as caught:
                client.converse(modelId=world.model, messages=TURN, **odd)
            assert isinstance(caught.value, getattr(client.exceptions, aws))
            response: Any = caught.value.response
            assert response["Error"]["Code"] == aws
            assert response["Error"]["Message"]
            assert response["ResponseMetadata"]["HTTPStatusCode"] == status

    await asyncio.to_thread(converse)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["openai chat", "anthropic"])
async def test_they_try_again_where_it_may_help_and_wait_as_told(
    world: World, name: str, case: str
) -> None:
    prepare, status, code, expected, _, again = CASES[case]
    await prepare(world)
    world.retries = 2
    waited: list[float] = []
    world.patch.setattr(time, "sleep", waited.append)
    sdk, call = SDKS[name]
    before, sent = world.refusals(code), len(world.upstream.calls)
    with pytest.raises(getattr(sdk, expected)) as caught:
        await asyncio.to_thread(call, world)
    assert world.refusals(code) - before == (3 if again else 1)
    pauses = [seconds for seconds in waited if seconds > 0]
    if case == "429 provider":
        told = int(caught.value.response.headers["retry-after"])  # type: ignore[attr-defined]
        # The first is the provider's word; then the model is away for so long, which we say.
        assert pauses[0] == RETRY_AFTER
        assert 1 <= told <= RETRY_AFTER
        assert len(world.upstream.calls) - sent == 1
    elif case == "429 window":
        assert all(1 <= seconds <= 60 for seconds in pauses)
    elif case == "429 budget":
        assert caught.value.response.headers["x-should-retry"] == "false"  # type: ignore[attr-defined]
    assert status == caught.value.status_code  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [name for name in SDKS if name != "openai responses"])
async def test_an_error_in_a_stream_is_raised(world: World, name: str) -> None:
    world.upstream.behaviour = Behaviour(chunks=6, error_event_after=3)
    sdk, call = SDKS[name]
    with pytest.raises(sdk.APIError, match="broke off"):
        await asyncio.to_thread(call, world, stream=True)


async def test_an_error_in_a_stream_of_a_response_is_its_last_event(world: World) -> None:
    """OpenAI's SDK raises nothing there, whoever serves it: the event is for the program."""
    world.upstream.behaviour = Behaviour(chunks=6, error_event_after=3)

    def read() -> list[Any]:
        url = f"{world.guard.public_url}/v1"
        with openai.OpenAI(base_url=url, api_key=world.key, max_retries=0) as client:
            return list(client.responses.create(model=world.model, input="hi", stream=True))

    *_, last = await asyncio.to_thread(read)
    assert (last.type, last.code) == ("error", "upstream_error")
    assert "broke off" in last.message


async def test_an_error_in_a_stream_is_raised_by_boto3(world: World) -> None:
    world.upstream.behaviour = Behaviour(chunks=6, error_event_after=3)

    def read() -> None:
        with bedrock(world) as client:
            answer = client.converse_stream(modelId=world.model, messages=TURN)
            with closing(answer["stream"]) as stream:
                list(stream)

    with pytest.raises(EventStreamError, match="broke off"):
        await asyncio.to_thread(read)


@pytest.mark.parametrize("good", [0, 1], ids=["at admission", "behind it"])
async def test_nothing_was_sent_is_promised_only_where_nothing_can_have_been(
    guard: InProcessGuard, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, good: int
) -> None:
    """Behind the admission a candidate may have been asked before, or the answer is looked at."""
    key = await guard.key()
    real, asked = guard.runtime.policy.confirm, 0

    async def confirm() -> Any:
        nonlocal asked
        asked += 1
        if asked > good:
            raise AuthorityUnavailableError("away")
        return await real()

    monkeypatch.setattr(guard.runtime.policy, "confirm", confirm)
    answer = await guard.chat(key)
    assert (answer.status_code, upstream.calls) == (503, [])
    assert ("nothing was sent" in answer.text) == (good == 0)
