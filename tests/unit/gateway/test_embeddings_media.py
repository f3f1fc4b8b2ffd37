"""What LiteLLM would give to Bedrock's embedding models as media is refused, whatever the model;
which texts these are is what `tests/service/translator/test_media_texts.py` asks LiteLLM."""

import json

import pytest

from terrace_gateway.edge.errors import ApiError

from .surface_calls import MODELS, PNG, read, sent, upstream

PATH = "/v1/embeddings"
MEDIA = [
    "s3://payroll/salaries.txt", f"data:image/png;base64,{PNG}", "data:video/mp4;base64,AAAA",
    "data:audio/mp3;base64,AAAA", "data:;base64,AAAA", "data:,test", "data:", "data: of 2026, test",
    # Read by no LiteLLM so far.
    " s3://bucket/key", "S3://bucket/key", "\n\tData:image/png;base64,AAAA", "DATA: image/png,x",
    "\u2003\u00a0s3://bucket/key",
]  # fmt: skip
TEXTS = [
    "", "hi", "Data: 12/03/2024, Roma", "DATA:", "database: x", "see data:image/png;base64,AAAA",
    "the key is s3://bucket/key", "s3:/x", "https://example.com/a.png", PNG, '{"inputImage": "x"}',
]  # fmt: skip
BEDROCK = MODELS["bedrock-claude"].model_copy(update={"upstream_model": "cohere.embed-v4:0"})


@pytest.fixture(autouse=True)
def bedrock_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "vectors", BEDROCK)


@pytest.mark.parametrize("text", MEDIA)
@pytest.mark.parametrize("index", [0, 2])
def test_media_in_a_text_is_refused_on_bedrock(text: str, index: int) -> None:
    inputs = ["a", "b", "c"]
    inputs[index] = text
    request = read(PATH, {"model": "m", "input": inputs})
    with pytest.raises(ApiError, match="not as a text; put a word before it") as caught:
        upstream(request, "vectors")
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "unsupported_parameter", "input")
    assert error.message.startswith(f"input[{index}] begins with ")
    assert PNG not in error.message
    assert sent(PATH, {"model": "m", "input": inputs})["input"] == inputs  # OpenAI reads texts


def test_a_text_that_a_guardrail_leaves_is_looked_at_as_it_is_sent() -> None:
    request = read(PATH, {"model": "m", "input": ["a word data:,test"]})
    assert json.loads(upstream(request, "vectors").body)["input"] == ["a word data:,test"]
    with pytest.raises(ApiError, match=r"input\[0\] begins with 'data:'"):
        upstream(request.with_texts(["data:,test"]), "vectors")


@pytest.mark.parametrize("text", TEXTS)
def test_other_texts_pass(text: str) -> None:
    assert sent(PATH, {"model": "m", "input": ["a", text]}, "vectors")["input"] == ["a", text]
