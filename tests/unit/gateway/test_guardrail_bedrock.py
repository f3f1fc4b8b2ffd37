"""Bedrock Guardrails: its bill and our books agree, whatever happens to the call."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
import structlog
from botocore.config import Config
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.edge.errors import ApiError
from terrace_gateway.guardrails.bedrock import MAX_UNITS, batches, text_units
from terrace_gateway.guardrails.chain import GuardrailRun
from terrace_gateway.guardrails.http_client import GuardrailHttp
from terrace_gateway.upstream.credentials import Credentials

from .fake_guardrail_service import FakeGuardrailService, answer
from .guardrail_world import Books, FixedCredentials, guardrails_of, start

pytestmark = pytest.mark.unit

PRICES = "price: {content: 150, topic: 150, sensitive_information: 100}"
SPEC = f"""
  - {{name: b, kind: bedrock, action: ACTION, provider: simulator-bedrock, timeout_seconds: SECONDS,
      guardrail_id: "arn:aws:bedrock:us-east-1:123456789012:guardrail/abc123",
      guardrail_version: "7", on_failure: FAILS, {PRICES}}}
"""


@dataclass
class World:
    fake: FakeGuardrailService
    http: GuardrailHttp
    books: Books

    def run(
        self,
        action: str = "block",
        fails: str = "closed",
        credentials: str = "ambient",
        seconds: float = 30,
    ) -> GuardrailRun:
        spec = SPEC.replace("ACTION", action).replace("FAILS", fails)
        spec = spec.replace("SECONDS", str(seconds))
        guardrails = guardrails_of(
            spec, http=self.http, endpoint=self.fake.url, credentials=credentials
        )
        return start(guardrails, "b", meter=self.books)

    def balance(self) -> None:
        assert sum(self.books.booked) == sum(entry["micro_usd"] for entry in self.fake.bill)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with FakeGuardrailService().running() as fake:
        http = GuardrailHttp(FixedCredentials())
        await http.open()
        yield World(fake, http, Books())
        await http.close()


async def test_each_asking_is_booked_with_what_it_cost(world: World) -> None:
    run = world.run()
    texts = ["x" * 999, "y" * 1001, ""]
    assert await run.before(texts) == tuple(texts)
    assert await run.after(["fine"]) == ("fine",)
    assert world.books.booked == [3 * 400, 400]
    assert run.micro_usd == 1600
    assert [one["body"]["source"] for one in world.fake.seen] == ["INPUT", "OUTPUT"]
    call = world.books.calls[0]
    assert (call.model, call.provider, call.worst_case.micro_usd) == (
        "guardrail/b", "simulator-bedrock", 1200,
    )  # fmt: skip
    world.balance()


async def test_block_mask_and_flag_by_names_only(world: World) -> None:
    run = world.run("mask")
    assert await run.before(["my PIN1234 here", "RUDE"]) == ("my {PIN} here", "RUDE")
    with pytest.raises(ApiError) as caught:
        await run.before(["a BOMB"])
    assert "topic:Weapons" in caught.value.message
    decisions = repr(run.decisions(request_id="r", trace_id="t", caller=None))
    assert "pii:PIN" in decisions
    assert "word:custom" in decisions
    assert "BOMB" not in decisions
    assert "PIN1234" not in decisions
    flagged = world.run("block")
    assert await flagged.before(["RUDE"]) == ("RUDE",)
    assert [one.did for one in flagged.findings] == ["flag"]
    world.balance()


async def test_the_fake_answers_what_botocore_reads(world: World) -> None:
    client = boto3.client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=world.fake.url,
        aws_access_key_id="AKID", aws_secret_access_key="secret",
        config=Config(retries={"total_max_attempts": 1}),
    )  # fmt: skip

    def ask() -> dict[str, object]:
        return client.apply_guardrail(
            guardrailIdentifier="arn:aws:bedrock:us-east-1:123456789012:guardrail/abc123",
            guardrailVersion="7", source="INPUT",
            content=[{"text": {"text": "my PIN1234"}}],
        )  # fmt: skip

    try:
        theirs = await asyncio.to_thread(ask)
    finally:
        client.close()
    assert theirs["action"] == "GUARDRAIL_INTERVENED"
    assert theirs["outputs"] == [{"text": "my {PIN}"}]
    await world.run("mask").before(["my PIN1234"])
    boto, ours = world.fake.seen
    assert ours["path"] == boto["path"]
    assert ours["body"] == boto["body"]
    scopes = [one["authorization"].split("/")[2:4] for one in (boto, ours)]
    assert scopes[0] == scopes[1] == ["us-east-1", "bedrock"]


@pytest.mark.parametrize("status", [400, 403, 429, 500, 503])
async def test_an_error_status_is_free_and_is_asked_once(world: World, status: int) -> None:
    world.fake.status = status
    with pytest.raises(ApiError) as caught:
        await world.run().before(["x"])
    assert caught.value.status == 503
    assert len(world.fake.seen) == 1
    assert world.books.outcomes == ["upstream_error"]
    world.balance()


@pytest.mark.parametrize(
    ("status", "own_word"),
    [(204, True), (302, True), (408, True), (500, False), (502, True), (503, False), (504, True)],
)
async def test_an_answer_that_is_no_refusal_of_aws_may_be_billed(
    world: World, status: int, own_word: bool
) -> None:
    world.fake.status, world.fake.own_word = status, own_word
    with pytest.raises(ApiError):
        await world.run().before(["x"])
    assert len(world.fake.seen) == 1
    assert world.books.outcomes == ["unknown"]


@pytest.mark.parametrize("status", [500, 503])
async def test_a_page_of_a_proxy_is_not_awss_word_under_whatever_id(
    world: World, status: int
) -> None:
    world.fake.status, world.fake.page = status, True
    with pytest.raises(ApiError):
        await world.run().before(["x"])
    assert world.books.outcomes == ["unknown"]


async def test_nothing_listens(world: World) -> None:
    world.fake.port = 1
    with pytest.raises(ApiError):
        await world.run().before(["x"])
    assert world.books.outcomes == ["not_sent"]
    world.balance()


@pytest.mark.parametrize("trouble", ["hang", "cut", "no json", "no usage", "unpriced"])
async def test_what_is_not_known_counts_as_its_reservation(world: World, trouble: str) -> None:
    unpriced = {"usage": {"automatedReasoningPolicyUnits": 3}, "action": "NONE"}
    world.fake.hang = trouble == "hang"
    world.fake.cut = trouble == "cut"
    world.fake.without_usage = trouble == "no usage"
    world.fake.answer = {"no json": b"<html>", "unpriced": answer(unpriced)}.get(trouble)
    run = world.run(fails="open", seconds=1 if trouble == "hang" else 30)
    assert await run.before(["x" * 2500]) == ("x" * 2500,)
    assert world.books.outcomes == ["unknown"]
    world.balance()
    assert len(world.fake.bill) == 1


async def test_without_budget_it_is_not_asked_and_the_call_is_refused(world: World) -> None:
    world.books.budget = 399
    with pytest.raises(ApiError) as caught:
        await world.run(fails="open").before(["x"])
    assert caught.value.code == "budget_exhausted"
    assert world.fake.seen == []


async def test_a_long_prompt_is_asked_in_parts_and_put_together_again(world: World) -> None:
    text = "é" * 24_990 + " PIN1234 " + "z" * 30_000
    run = world.run("mask")
    passed = await run.before([text, "PIN1234"])
    assert passed[1] == "{PIN}"
    assert passed[0].replace("{PIN}", "PIN1234") == text
    assert len(world.fake.seen) > 2
    world.balance()


async def test_masked_texts_that_do_not_fit_are_a_block(world: World) -> None:
    usage = {"contentPolicyUnits": 1}
    pii = {"piiEntities": [{"type": "PIN", "action": "ANONYMIZED", "match": "1"}]}
    world.fake.answer = answer(
        {"usage": usage, "action": "GUARDRAIL_INTERVENED", "outputs": [],
         "assessments": [{"sensitiveInformationPolicy": pii}]}
    )  # fmt: skip
    with pytest.raises(ApiError):
        await world.run("mask").before(["x"])


async def test_keys_of_the_provider_sign_as_soon_as_they_are_there(
    world: World, tmp_path: Path
) -> None:
    """With ``credentials: keys`` the identity of the pod is not asked for."""
    world.http = GuardrailHttp(FixedCredentials("ELSE"), credential=Credentials(tmp_path, {}).find)
    await world.http.open()
    run = world.run(credentials="keys")
    for missing in ("AWS_ACCESS_KEY_ID and no AWS_SECRET_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY"):
        with structlog.testing.capture_logs() as logs, pytest.raises(ApiError):
            await run.before(["x"])
        assert [entry["reason"] for entry in logs] == [f"the guard has no {missing}"]
        (tmp_path / "AWS_ACCESS_KEY_ID").write_text("AKID\n")
    assert (world.fake.seen, world.books.calls) == ([], [])
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text("secret\n")
    assert await run.before(["x"]) == ("x",)
    await world.http.close()
    assert world.books.booked == [400]
    world.balance()


@given(st.lists(st.text(max_size=10), max_size=40), st.integers(0, 60_000), st.integers(0, 39))
def test_parts_are_bounded_and_complete(texts: list[str], long: int, place: int) -> None:
    texts = [text * (long if index == place else 1) for index, text in enumerate(texts)]
    found = [""] * len(texts)
    for batch in batches(texts):
        assert text_units(batch) <= MAX_UNITS
        for piece in batch:
            found[piece.index] += piece.text
    assert found == texts
