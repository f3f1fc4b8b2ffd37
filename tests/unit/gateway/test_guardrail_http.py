"""A guardrail of the user's own over HTTP."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.guardrails.chain import GuardrailRun
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.upstream.credentials import Credentials

from .fake_guardrail_service import FakeGuardrailService, answer
from .guardrail_world import Books, FixedCredentials, guardrails_of, start

pytestmark = pytest.mark.unit


@pytest.fixture
async def fake() -> AsyncIterator[FakeGuardrailService]:
    async with FakeGuardrailService().running() as service:
        yield service


@pytest.fixture
async def http() -> AsyncIterator[GuardrailHttp]:
    client = GuardrailHttp(FixedCredentials(), credential={"GUARD_TOKEN": "t0ken"}.get)
    await client.open()
    yield client
    await client.close()


def run_of(
    fake: FakeGuardrailService, http: GuardrailHttp, action: str = "mask", seconds: float = 30,
    meter: Books | None = None,
) -> GuardrailRun:  # fmt: skip
    spec = (
        f"  - {{name: h, kind: http, action: {action}, url: '{fake.url}/check',"
        f" token_env: GUARD_TOKEN, timeout_seconds: {seconds}}}\n"
    )
    return start(guardrails_of(spec, http=http), "h", meter=meter or Books())


async def test_it_is_asked_with_its_token_and_its_mask_is_applied(
    fake: FakeGuardrailService, http: GuardrailHttp
) -> None:
    fake.answer = answer({"action": "mask", "rules": ["x"], "texts": ["*", "b"]})
    run = run_of(fake, http)
    assert await run.before(["a", "b"]) == ("*", "b")
    assert fake.seen == [
        {
            "body": {"phase": "before", "guardrail": "h", "texts": ["a", "b"]},
            "authorization": "Bearer t0ken",
        }
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        b"", b"[]", b"nope", b"[" * 100_000, answer({}), answer({"action": "explode"}),
        answer({"action": "mask"}), answer({"action": "mask", "texts": ["x", "y"]}),
        answer({"action": "mask", "texts": [1]}),
    ],
)  # fmt: skip
async def test_a_wrong_answer_is_a_failure(
    fake: FakeGuardrailService, http: GuardrailHttp, wrong: bytes
) -> None:
    fake.answer = wrong
    with pytest.raises(ApiError) as caught:
        await run_of(fake, http).before(["a"])
    assert caught.value.status == 503


@pytest.mark.parametrize("status", [302, 401, 500])
async def test_a_wrong_status_is_a_failure(
    fake: FakeGuardrailService, http: GuardrailHttp, status: int
) -> None:
    fake.status = status
    with pytest.raises(ApiError) as caught:
        await run_of(fake, http).before(["a"])
    assert caught.value.status == 503
    assert len(fake.seen) == 1


async def test_a_slow_one_is_a_failure(fake: FakeGuardrailService, http: GuardrailHttp) -> None:
    fake.hang = True
    with pytest.raises(ApiError) as caught:
        await run_of(fake, http, seconds=0.5).before(["a"])
    assert caught.value.status == 503


async def test_what_it_calls_its_rules_is_no_way_for_text_into_the_ledger(
    fake: FakeGuardrailService, http: GuardrailHttp
) -> None:
    fake.answer = answer({"action": "flag", "rules": ["the user said: hello", 7, "ok"]})
    run = run_of(fake, http)
    await run.before(["a"])
    assert run.findings[0].rules == ("unnamed", "unnamed", "ok")


async def test_without_its_token_it_is_not_asked(fake: FakeGuardrailService) -> None:
    client = GuardrailHttp(FixedCredentials(), credential={}.get)
    await client.open()
    with pytest.raises(ApiError):
        await run_of(fake, client).before(["a"])
    await client.close()
    assert fake.seen == []


async def test_its_token_may_be_a_file_of_the_credentials_folder(
    fake: FakeGuardrailService, tmp_path: Path
) -> None:
    (tmp_path / "GUARD_TOKEN").write_text("from-a-file\n")
    client = GuardrailHttp(FixedCredentials(), credential=Credentials(tmp_path, {}).find)
    await client.open()
    fake.answer = answer({"action": "allow"})
    await run_of(fake, client).before(["a"])
    await client.close()
    assert [one["authorization"] for one in fake.seen] == ["Bearer from-a-file"]
