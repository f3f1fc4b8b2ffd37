"""What a client sends as a text reaches the provider as one, whatever it looks like: LiteLLM reads
some texts as images, videos or objects in S3, which nothing bounds and no guardrail sees."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from terrace_common.governance import Governance, load_governance
from terrace_gateway.edge.errors import ApiError
from terrace_gateway.edge.routes import match_route
from terrace_gateway.surfaces.request import read_request

from . import fake_provider
from .conftest import PYTHON, Translator, config, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK = """
import importlib, inspect, json, pkgutil
from typing import get_args
import litellm, litellm.llms.bedrock.embed as embed
from litellm.constants import BEDROCK_EMBEDDING_PROVIDERS_LITERAL
modules = [importlib.import_module(f"{embed.__name__}.{m.name}")
           for m in pkgutil.iter_modules(embed.__path__)]
readers = [name for module in modules for name, one in inspect.getmembers(module, inspect.isclass)
           if one.__module__ == module.__name__ and hasattr(one, "transform_request")]
models = [name.rsplit("/", 1)[-1] for name, one in litellm.model_cost.items()
          if one.get("mode") == "embedding" and "bedrock" in str(one.get("litellm_provider"))]
print(json.dumps([get_args(BEDROCK_EMBEDDING_PROVIDERS_LITERAL), readers, sorted(set(models))]))
"""
FAMILIES = {"amazon", "cohere", "nova", "twelvelabs"}
READERS = {
    "AmazonNovaEmbeddingConfig", "AmazonTitanG1Config", "AmazonTitanMultimodalEmbeddingG1Config",
    "AmazonTitanV2Config", "BedrockCohereEmbeddingConfig", "TwelveLabsMarengoEmbeddingConfig",
}  # fmt: skip
TITAN_TEXTS = ("amazon.titan-embed-text-v1", "amazon.titan-embed-text-v2-0")
PLAIN = "a plain text"
MEDIA = [
    "s3://bucket/key", "data:image/png;base64,iVBORw0KGgo=", "data:image/png;base64,x",
    "data:video/mp4;base64,AAAA", "data:audio/mp3;base64,AAAA", "data:,test", "data: a, test",
    "data:text/plain;base64,AAAA", "data: none",
    "data:\n  key: value", "data: {x: 1, y: 2}", "data:,AAAA", "data:,", "data: a,AAAA,b",
    "data:;x,AAA=",
]  # fmt: skip
ODD = [
    " s3://bucket/key", "S3://bucket/key", "Data:image/png;base64,AAAA", "DATA:,test",
    " data:,test", "\tdata:image/png;base64,AAAA", "\ufeffdata:image/png;base64,AAAA",
    "\ufeffs3://bucket/key", "\u200bdata:,test", "Data: 12/03/2024, test", "see data:,test",
    "gs://bucket/key", "gcs://bucket/key", "file:///etc/passwd", "https://example.com/a.png",
    "http://169.254.169.254/a.png", "arn:aws:s3:::bucket/key", "iVBORw0KGgo=", "AAAA", "//8=",
    "<image>data:,test</image>", "image/png;base64,AAAA", "os.environ/AWS_SECRET_ACCESS_KEY",
    "![a](data:image/png;base64,AAAA)", "{inputImage: AAAA}", "",
]  # fmt: skip
WRITTEN_AS_THEY_ARE = [
    text for text in (*MEDIA, *ODD) if text and text.isprintable() and text.isascii()
    and text == text.strip()
]  # fmt: skip
BEDROCK = """
version: 1
price_version: "1"
providers:
  - {name: bedrock, kind: bedrock, region: us-east-1}
  - {name: sim, kind: openai, api_base: "http://sim/v1"}
models:
"""
MODEL = """  - {name: "%s", provider: %s, upstream_model: "%s", kind: %s, context_tokens: 200000,
     max_output_tokens: 99, price: {input_micro_usd_per_mtok: 1, output_micro_usd_per_mtok: 1}}
"""
CHATS = {
    "bedrock-claude": ("bedrock", "anthropic.claude-sonnet-4-5-20250929-v1:0"),
    "bedrock-unknown": ("bedrock", "anthropic.claude-none-such-v1:0"),
    "bedrock-nova": ("bedrock", "amazon.nova-lite-v1:0"),
    "bedrock-pegasus": ("bedrock", "twelvelabs.pegasus-1-2-v1:0"),
    "sim-small": ("sim", "sim-small"),
}


@dataclass
class World:
    """A translator with every embeddings model of Bedrock that LiteLLM knows."""

    translator: Translator
    governance: Governance
    families: list[str]
    readers: list[str]
    vectors: list[str]

    async def wire(self, path: str, model: str, body: dict[str, Any]) -> str:
        """What the provider is sent for a client's body. Raises ``ApiError``."""
        match = match_route("POST", path)
        assert match is not None
        found = self.governance.find_model(model)
        assert found is not None
        named = {"model": model} if path.startswith("/v1/") else {}
        upstream = read_request(match, {**named, **body}).upstream(
            governance=self.governance, model=found, attempt_id="att_1",
            traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            max_output_tokens=20,
        )  # fmt: skip
        return await self.sent(upstream.path, upstream.body)

    async def sent(self, path: str, body: bytes) -> str:
        self.translator.provider.calls.clear()
        headers = {"content-type": "application/json"}
        answer = await self.translator.client.post(path, content=body, headers=headers)
        if not self.translator.provider.calls:
            return f"nothing: {answer.status_code}"
        (call,) = self.translator.provider.calls
        return json.dumps(call.body, ensure_ascii=False, sort_keys=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    asked = await asyncio.create_subprocess_exec(
        PYTHON, "-c", ASK, stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )  # fmt: skip
    told, _ = await asked.communicate()
    families, readers, ids = json.loads(told)
    vectors = {one.replace(":", "-"): one for one in ids}
    models = "".join(MODEL % (name, "bedrock", vectors[name], "embeddings") for name in vectors)
    models += "".join(MODEL % (name, *where, "chat") for name, where in CHATS.items())
    models += MODEL % ("sim-embed", "sim", "sim-embed", "embeddings")
    governance = load_governance(BEDROCK + models, "governance.yaml")
    async with fake_provider.serving() as provider:
        configuration = config(provider.address)
        declared = {entry["model_name"] for entry in configuration["model_list"]}
        openai, bedrock = (entry["litellm_params"] for entry in configuration["model_list"])
        for one in governance.models:
            known, kind = (openai, "openai") if one.provider == "sim" else (bedrock, "bedrock")
            entry = {**known, "model": f"{kind}/{one.upstream_model}"}
            if one.name not in declared:
                configuration["model_list"].append(
                    {"model_name": one.name, "litellm_params": entry}
                )
        folder = tmp_path_factory.mktemp("media")
        async with running(folder, provider, configuration=configuration) as translator:
            yield World(translator, governance, families, readers, [*vectors])


def shape(wire: str, text: str) -> str:
    """What was sent around the text."""
    return wire.replace(json.dumps(text, ensure_ascii=False), "TEXT")


async def test_no_family_of_embeddings_models_is_unknown(world: World) -> None:
    """LiteLLM has another one: read what it makes of a text, then add it here."""
    assert set(world.families) == FAMILIES
    assert set(world.readers) == READERS
    missing = [one for one in FAMILIES if not any(one in name for name in world.vectors)]
    assert not missing


async def test_a_text_for_vectors_is_sent_as_one_or_refused(world: World) -> None:
    for model in world.vectors:
        plain = await world.wire("/v1/embeddings", model, {"input": PLAIN})
        assert PLAIN in plain, model
        for text in (*MEDIA, *ODD):
            try:
                wire = await world.wire("/v1/embeddings", model, {"input": [text]})
            except ApiError:
                continue
            assert shape(wire, text) == shape(plain, PLAIN), (model, text)


async def test_litellm_reads_what_is_refused_as_media(world: World) -> None:
    """Else the refusal could go."""
    read: set[str] = set()
    for model in world.vectors:
        body = {"model": model, "input": [PLAIN]}
        plain = shape(await world.sent("/v1/embeddings", json.dumps(body).encode()), PLAIN)
        for text in MEDIA:
            body["input"] = [text]
            wire = await world.sent("/v1/embeddings", json.dumps(body).encode())
            if shape(wire, text) != plain:
                read.add(text.partition(":")[0])
            elif model.startswith(TITAN_TEXTS):  # takes all texts as they are
                sent = await world.wire("/v1/embeddings", model, {"input": [text]})
                assert shape(sent, text) == plain, (model, text)
    assert read == {"s3", "data"}


async def test_other_providers_are_sent_any_text_for_a_vector(world: World) -> None:
    for text in (*MEDIA, *ODD):
        wire = await world.wire("/v1/embeddings", "sim-embed", {"input": [text, PLAIN]})
        assert json.loads(wire)["input"] == [text, PLAIN]


async def test_tokens_are_refused(world: World) -> None:
    """LiteLLM writes a list of tokens as the text that they stand for."""
    for tokens in ([1, 2], [[1, 2]], ["a", [1]], ["a", 1], [True]):
        with pytest.raises(ApiError, match="tokens cannot be read"):
            await world.wire("/v1/embeddings", world.vectors[0], {"input": tokens})


def chat(text: str) -> dict[str, Any]:
    call = {"name": "f", "arguments": json.dumps({"x": text}, ensure_ascii=False)}
    part = [{"type": "text", "text": text}]
    return {"tools": [{"type": "function", "function": {"name": "f", "description": text}}],
            "messages": [
        {"role": "system", "content": text}, {"role": "user", "content": text},
        {"role": "assistant", "content": text,
         "tool_calls": [{"id": "c", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c", "content": text},
        {"role": "user", "content": part}]}  # fmt: skip


def plain_chat(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": text}, {"role": "user", "content": text}]}


def messages(text: str) -> dict[str, Any]:
    part = [{"type": "text", "text": text}]
    return {"max_tokens": 20, "system": text,
            "tools": [{"name": "f", "description": text, "input_schema": {"type": "object"}}],
            "messages": [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f",
                                           "input": {"x": text}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": text},
                                     {"type": "text", "text": text}]},
        {"role": "assistant", "content": part}, {"role": "user", "content": part}]}  # fmt: skip


def responses(text: str) -> dict[str, Any]:
    arguments = json.dumps({"x": text}, ensure_ascii=False)
    return {"instructions": text, "input": [
        {"role": "user", "content": text},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c", "output": text},
        {"role": "user", "content": [{"type": "input_text", "text": text}]}]}  # fmt: skip


def converse(text: str) -> dict[str, Any]:
    return {"system": [{"text": text}], "messages": [{"role": "user", "content": [{"text": text}]}]}


Body = Callable[[str], dict[str, Any]]
SURFACES: list[tuple[str, Body, list[str]]] = [
    ("/v1/chat/completions", chat, [one for one in CHATS if one != "bedrock-pegasus"]),
    ("/v1/chat/completions", plain_chat, ["bedrock-pegasus"]),
    ("/v1/messages", messages, ["bedrock-claude", "bedrock-nova", "sim-small"]),
    ("/v1/responses", responses, ["bedrock-claude", "bedrock-nova", "sim-small"]),
    ("/v1/completions", lambda text: {"prompt": text}, [*CHATS]),
    ("/model/bedrock-claude/converse", converse, ["bedrock-claude"]),
]


@pytest.mark.parametrize(("path", "body", "models"), SURFACES)
async def test_on_other_surfaces_texts_are_texts(
    world: World, path: str, body: Body, models: list[str]
) -> None:
    for model in models:
        plain = await world.wire(path, model, body(PLAIN))
        assert PLAIN in plain, model
        for text in WRITTEN_AS_THEY_ARE:
            wire = await world.wire(path, model, body(text))  # in some places among other words
            assert wire.replace(text, "TEXT") == plain.replace(PLAIN, "TEXT"), (model, text)
