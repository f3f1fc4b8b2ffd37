"""What LiteLLM would give to a Bedrock model for embeddings as media is refused, by family;
which texts these are is what `tests/service/translator/test_media_texts.py` asks LiteLLM."""

import json

import pytest

from terrace_gateway.edge.errors import ApiError

from .surface_calls import MODELS, PNG, read, sent, upstream

PATH = "/v1/embeddings"
MEDIA = [
    "s3://payroll/salaries.txt", f"data:image/png;base64,{PNG}", "data:video/mp4;base64,AAAA",
    "data:audio/mp3;base64,AAAA", "data:;base64,AAAA",
    "data:text/plain,hi",
    # Read by no LiteLLM so far.
    " s3://bucket/key", "S3://bucket/key", "\n\tData:image/png;base64,AAAA", "DATA: image/png,x",
    "\u2003\u00a0s3://bucket/key", "data:image/png;base64",
]  # fmt: skip
TEXTS = [
    "", "hi", "Data: 12/03/2024, Roma", "DATA:", "database: x", "see data:image/png;base64,AAAA",
    "the key is s3://bucket/key", "s3:/x", "https://example.com/a.png", PNG, '{"inputImage": "x"}',
]  # fmt: skip
COHERE, NOVA = "cohere.embed-v4:0", "amazon.nova-2-multimodal-embeddings-v1:0"
IMAGES, MARENGO = "amazon.titan-embed-image-v1", "twelvelabs.marengo-embed-2-7-v1:0"
TITANS = ["amazon.titan-embed-g1-text-02", "amazon.titan-embed-text-v1",
          "amazon.titan-embed-text-v2:0"]  # fmt: skip
CONFIG_MAP, SSE = "data:\n  key: value", 'data: {"a": 1, "b": 2}'
BASE64 = ["data:,test", "data:,", "data: of 2026,AAAA,x", "data:,AAA="]


def served_by(upstream_model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["bedrock-claude"].model_copy(update={"upstream_model": upstream_model})
    monkeypatch.setitem(MODELS, "vectors", model)


@pytest.fixture(autouse=True)
def bedrock_model(monkeypatch: pytest.MonkeyPatch) -> None:
    served_by(COHERE, monkeypatch)


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


def is_refused(text: str) -> bool:
    try:
        upstream(read(PATH, {"model": "m", "input": [text]}), "vectors")
    except ApiError:
        return True
    return False


@pytest.mark.parametrize("model", TITANS)
def test_titan_takes_every_text_as_one(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served_by(model, monkeypatch)
    assert not [text for text in (*MEDIA, *BASE64, CONFIG_MAP, SSE) if is_refused(text)]


@pytest.mark.parametrize("model", [COHERE, f"eu.{COHERE}", IMAGES])
def test_prose_behind_data_is_a_text_where_base64_makes_media(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(model, monkeypatch)
    prose = ("data:", CONFIG_MAP, SSE, "data: the results, and more")
    assert [text for text in (*MEDIA, *BASE64, *prose) if not is_refused(text)] == [*prose]


def test_nova_takes_prose_with_a_comma(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one LiteLLM breaks at it."""
    served_by(NOVA, monkeypatch)
    assert not [text for text in (*MEDIA, "data:", CONFIG_MAP) if not is_refused(text)]
    assert not [text for text in (*BASE64, SSE) if is_refused(text)]


@pytest.mark.parametrize("model", [MARENGO, "amazon.titan-embed-text-v3:0", "acme.vectors-1"])
def test_of_a_family_that_is_not_known_data_is_refused(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(model, monkeypatch)
    assert not [text for text in (*MEDIA, *BASE64, CONFIG_MAP, SSE) if not is_refused(text)]
