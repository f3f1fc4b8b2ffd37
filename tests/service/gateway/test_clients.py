"""Proof 9: clients' own streaming, tool, structured-output and error paths work unchanged."""

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import anthropic
import boto3
import httpx
import openai
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from gateway_rig.guard import write_files
from gateway_rig.postgres import Postgres
from gateway_rig.real_upstream import RealUpstream
from gateway_rig.sync_guard import SyncGuard
from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, SecretStr

OPENAI_MODELS = ["sim-small", "bedrock-claude"]
TEXT = "hello there [[tokens=24]]"


class Weather(BaseModel):
    """Weather of a place."""

    place: str


SCHEMA = Weather.model_json_schema()


@pytest.fixture(scope="module")
def gate(
    real: RealUpstream, postgres: Postgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SyncGuard]:
    """A guard as a process before the real LiteLLM and the simulator. At the end its ledger must
    equal the simulator's bill, call by call."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    if not postgres.running:
        postgres.start()
    with postgres.superuser() as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER gateway")
    real.no_faults()
    before = real.bill()["total_micro_usd"]
    folder = tmp_path_factory.mktemp("clients")
    files = write_files(folder, database_url=postgres.url(name), governance=real.governance_text)
    with SyncGuard.running(
        folder / "guard.log", **files, translator_socket=real.socket,
        translator_key_file=real.key_file, spool_directory=folder / "spool",
    ) as guard:  # fmt: skip
        yield guard
        assert_bill_is_the_ledger(guard, real, before)


def assert_bill_is_the_ledger(guard: SyncGuard, real: RealUpstream, before: int) -> None:
    deadline = time.monotonic() + 180
    while True:  # entries are shipped to the database soon after the answer
        ledger: Counter[str] = Counter()
        for entry in guard.admin("GET", "/ledger?limit=1000")["entries"]:
            ledger[entry["attempt_id"]] += entry["amount_micro_usd"]
        billed = {attempt: real.bill(attempt) for attempt in ledger}
        calls = [len(bill["entries"]) for bill in billed.values()]
        books = {attempt: bill["total_micro_usd"] for attempt, bill in billed.items()}
        total = real.bill()["total_micro_usd"] - before
        if books == dict(ledger) and total == sum(ledger.values()):
            assert max(calls) == 1  # no hidden retry, whatever the client library does
            return
        assert time.monotonic() < deadline, (books, ledger, total)
        time.sleep(0.2)


@pytest.fixture
def url(gate: SyncGuard) -> str:
    return gate.public_url


@pytest.fixture(scope="module")
def key(gate: SyncGuard) -> str:
    return gate.admin("POST", "/keys", json={"team": "team-a"})["key"]


@pytest.fixture
def client(url: str, key: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as found:
        yield found


@pytest.fixture
def claude(url: str, key: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as found:
        yield found


@pytest.fixture
def bedrock(url: str, key: str) -> Iterator[Any]:
    found = boto3.client(
        "bedrock-runtime", region_name="us-east-1", endpoint_url=url,
        config=Config(retries={"total_max_attempts": 1}, signature_version=UNSIGNED),
    )  # fmt: skip

    def add_key(request: Any, **_: Any) -> None:  # botocore sends bearer tokens over HTTPS only
        request.headers["Authorization"] = f"Bearer {key}"

    found.meta.events.register("before-send.bedrock-runtime", add_key)
    with closing(found):
        yield found


@pytest.fixture
def throttled(real: RealUpstream, url: str, key: str) -> Iterator[Callable[[str], None]]:
    """The provider throttles a model once; it is served again before the next test."""
    models: list[str] = []

    def throttle(model: str) -> None:
        models.append(model)
        real.fault(kind="status", status=429)

    yield throttle
    real.no_faults()
    for model in models:
        deadline = time.monotonic() + 120
        body = {"model": model, "messages": user("back?"), "max_tokens": 9}
        headers = {"authorization": f"Bearer {key}"}
        path = f"{url}/v1/chat/completions"
        while httpx.post(path, json=body, headers=headers, timeout=60).is_error:
            assert time.monotonic() < deadline, "a model that was throttled once stays away"
            time.sleep(0.2)


def user(text: str = TEXT) -> Any:
    return [{"role": "user", "content": text}]


def chat_tool() -> Any:
    return [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]


@pytest.mark.parametrize("model", OPENAI_MODELS)
def test_openai_chat(client: openai.OpenAI, model: str) -> None:
    plain = client.chat.completions.create(model=model, messages=user(), max_tokens=50)
    assert plain.model == model
    with client.chat.completions.stream(
        model=model, messages=user(), max_tokens=50, stream_options={"include_usage": True}
    ) as stream:
        text = "".join(e.delta for e in stream if e.type == "content.delta")
        final = stream.get_final_completion()
    assert text == plain.choices[0].message.content == final.choices[0].message.content
    assert plain.usage is not None
    assert final.usage is not None
    assert final.usage.completion_tokens == plain.usage.completion_tokens == 24
    with client.chat.completions.stream(
        model=model, messages=user("[[tool]]"), tools=chat_tool()
    ) as stream:
        made = stream.get_final_completion()
    (call,) = made.choices[0].message.tool_calls or []
    assert set(json.loads(call.function.arguments)) == {"place"}
    follow = client.chat.completions.create(
        model=model, tools=chat_tool(),
        messages=[*user("[[tool]]"), made.choices[0].message.model_dump(exclude_none=True),
                  {"role": "tool", "tool_call_id": call.id, "content": "rain"}],
    )  # fmt: skip
    assert follow.choices[0].finish_reason == "stop"


def test_openai_structured_output(client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model="sim-small", messages=user(), response_format=Weather
    )
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    response = client.responses.parse(model="sim-small", input="hi", text_format=Weather)
    assert isinstance(response.output_parsed, Weather)


@pytest.mark.parametrize("model", OPENAI_MODELS)
def test_openai_responses(client: openai.OpenAI, model: str) -> None:
    plain = client.responses.create(model=model, input=TEXT, instructions="be brief")
    assert plain.model == model
    assert plain.instructions == "be brief"
    assert plain.status == "completed"
    with client.responses.stream(model=model, input=TEXT, instructions="be brief") as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == plain.output_text
    assert final.usage is not None
    assert plain.usage is not None
    assert final.usage.output_tokens == plain.usage.output_tokens == 24
    tool: Any = {"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}
    with client.responses.stream(model=model, input="[[tool]]", tools=[tool]) as stream:
        made = stream.get_final_response()
    call = next(item for item in made.output if item.type == "function_call")
    assert set(json.loads(call.arguments)) == {"place"}
    follow = client.responses.create(
        model=model, tools=[tool],
        input=[*user("[[tool]]"), *(i.model_dump(exclude_none=True) for i in made.output),
               {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
    )  # fmt: skip
    assert follow.output_text


def test_openai_cut_answers_say_so(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="sim-small", messages=user(), max_tokens=5)
    assert chat.choices[0].finish_reason == "length"
    response = client.responses.create(model="sim-small", input=TEXT, max_output_tokens=5)
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    with client.responses.stream(model="sim-small", input=TEXT, max_output_tokens=5) as stream:
        kinds = [event.type for event in stream]
    assert kinds[-1] == "response.incomplete"


@pytest.mark.parametrize("model", OPENAI_MODELS)
def test_openai_completions(client: openai.OpenAI, model: str) -> None:
    plain = client.completions.create(model=model, prompt=TEXT, max_tokens=50)
    chunks = list(client.completions.create(model=model, prompt=TEXT, max_tokens=50, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == plain.choices[0].text
    assert {chunk.model for chunk in chunks} == {plain.model} == {model}


def test_openai_embeddings(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="sim-embed", input=["a", "b"])
    numbers = client.embeddings.create(model="sim-embed", input=["a", "b"], encoding_format="float")
    for one, other in zip(packed.data, numbers.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
    assert packed.usage.prompt_tokens == 2


def test_openai_errors_are_its_own(client: openai.OpenAI, throttled: Callable[[str], None]) -> None:
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="nope", messages=user())
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="sim-small", input="x", previous_response_id="resp_1")
    assert caught.value.param == "previous_response_id"
    throttled("sim-small")
    with pytest.raises(openai.RateLimitError):
        client.responses.create(model="sim-small", input="x")
    assert {model.id for model in client.models.list()} >= {"sim-small", "bedrock-claude"}
    assert client.models.retrieve("sim-small").id == "sim-small"


@pytest.mark.parametrize("model", OPENAI_MODELS)
def test_anthropic_messages(claude: anthropic.Anthropic, model: str) -> None:
    plain = claude.messages.create(model=model, messages=user(), max_tokens=50, system="brief")
    assert plain.model == model
    with claude.messages.stream(
        model=model, messages=user(), max_tokens=50, system="brief"
    ) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    (block,) = plain.content
    assert block.type == "text"
    assert text == block.text
    assert final.usage.output_tokens == plain.usage.output_tokens == 24
    assert final.usage.input_tokens == plain.usage.input_tokens > 0
    tools: Any = [{"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}]
    with claude.messages.stream(
        model=model, messages=user("[[tool]]"), max_tokens=50, tools=tools
    ) as stream:
        made = stream.get_final_message()
    use = next(block for block in made.content if block.type == "tool_use")
    assert set(use.input) == {"place"}
    assert made.stop_reason == "tool_use"
    content: Any = [block.model_dump(exclude_none=True) for block in made.content]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain"}
    follow = claude.messages.create(
        model=model, tools=tools, max_tokens=200,
        messages=[*user("[[tool]]"), {"role": "assistant", "content": content},
                  {"role": "user", "content": [result]}],
    )  # fmt: skip
    assert follow.stop_reason == "end_turn"
    assert claude.messages.count_tokens(model=model, messages=user()).input_tokens > 0


def test_anthropic_errors_are_its_own(
    claude: anthropic.Anthropic, throttled: Callable[[str], None]
) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="nope", messages=user(), max_tokens=9)
    assert missing.value.body["type"] == "error"  # type: ignore[index]
    with pytest.raises(anthropic.BadRequestError, match="mcp_servers"):
        claude.messages.create(
            model="bedrock-claude", messages=user(), max_tokens=9,
            extra_body={"mcp_servers": [{"url": "http://x"}]},
        )  # fmt: skip
    throttled("bedrock-claude")
    with pytest.raises(anthropic.RateLimitError):
        claude.messages.create(model="bedrock-claude", messages=user(), max_tokens=9)
    assert {model.id for model in claude.models.list()} >= {"sim-small", "bedrock-claude"}


def test_boto3(bedrock: Any) -> None:
    messages = [{"role": "user", "content": [{"text": TEXT}]}]
    plain = bedrock.converse(modelId="bedrock-claude", messages=messages)
    text = plain["output"]["message"]["content"][0]["text"]
    with closing(
        bedrock.converse_stream(modelId="bedrock-claude", messages=messages)["stream"]
    ) as s:
        found = list(s)
    deltas = [e["contentBlockDelta"]["delta"]["text"] for e in found if "contentBlockDelta" in e]
    assert "".join(deltas) == text
    assert found[-1]["metadata"]["usage"] == plain["usage"]
    tools = [{"toolSpec": {"name": "get_weather", "inputSchema": {"json": SCHEMA}}}]
    asked = [{"role": "user", "content": [{"text": "[[tool]]"}]}]
    made = bedrock.converse(modelId="bedrock-claude", messages=asked, toolConfig={"tools": tools})
    assert made["stopReason"] == "tool_use"
    use = made["output"]["message"]["content"][0]["toolUse"]
    result = {"toolUseId": use["toolUseId"], "content": [{"text": "rain"}]}
    asked += [made["output"]["message"], {"role": "user", "content": [{"toolResult": result}]}]
    follow = bedrock.converse(modelId="bedrock-claude", messages=asked, toolConfig={"tools": tools})
    assert follow["stopReason"] == "end_turn"


def test_boto3_errors_are_its_own(bedrock: Any, throttled: Callable[[str], None]) -> None:
    messages = [{"role": "user", "content": [{"text": "x"}]}]
    for model in ("nope", "sim-small"):
        with pytest.raises(ClientError) as caught:
            bedrock.converse(modelId=model, messages=messages)
        assert caught.value.response["Error"]["Code"] == "ResourceNotFoundException"
    throttled("bedrock-claude")
    with pytest.raises(bedrock.exceptions.ThrottlingException):
        bedrock.converse(modelId="bedrock-claude", messages=messages)


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_openai(url: str, key: str, responses: bool) -> None:
    model = ChatOpenAI(
        model="sim-small", base_url=f"{url}/v1", api_key=SecretStr(key), max_retries=0,
        use_responses_api=responses,
    )  # fmt: skip
    whole = model.invoke(TEXT)
    streamed = None
    for chunk in model.stream(TEXT):
        streamed = chunk if streamed is None else streamed + chunk
    assert streamed is not None
    assert streamed.text == whole.text
    assert isinstance(model.with_structured_output(Weather).invoke(TEXT), Weather)
    bound = model.bind_tools([Weather])
    asked = [HumanMessage("[[tool]]")]
    made = bound.invoke(asked)
    (call,) = made.tool_calls
    assert set(call["args"]) == {"place"}
    follow = bound.invoke([*asked, made, ToolMessage("rain", tool_call_id=call["id"])])
    assert follow.text
    vectors = OpenAIEmbeddings(
        model="sim-embed", base_url=f"{url}/v1", api_key=SecretStr(key),
        check_embedding_ctx_length=False,
    ).embed_documents(["a", "b"])  # fmt: skip
    assert len(vectors) == 2


def test_langchain_anthropic(url: str, key: str) -> None:
    model = ChatAnthropic(
        model_name="bedrock-claude", base_url=url, api_key=SecretStr(key), max_retries=0,
        max_tokens_to_sample=60, timeout=60, stop=None,
    )  # fmt: skip
    whole = model.invoke(TEXT)
    assert "".join(chunk.text for chunk in model.stream(TEXT)) == whole.text
    assert isinstance(model.with_structured_output(Weather).invoke(TEXT), Weather)
    bound = model.bind_tools([Weather])
    asked = [HumanMessage("[[tool]]")]
    made = bound.invoke(asked)
    (call,) = made.tool_calls
    follow = bound.invoke([*asked, made, ToolMessage("rain", tool_call_id=call["id"])])
    assert follow.text
