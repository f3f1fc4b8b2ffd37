"""A bound on tokens holds for tokenizers that normalise and for templates that render JSON anew."""

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_gateway.surfaces import text_size
from terrace_gateway.surfaces.schema_size import expanded_bytes
from terrace_gateway.surfaces.text_size import NUMBER_GROWTH, normalised_growth, rendered_growth

from .surface_calls import read, upstream

LONGEST = "\ufdfa"  # three bytes; 33 when it is normalised, 15 tokens of Anthropic's tokenizer
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.text(
    st.sampled_from("aé\u0301\u0323ế각ᄀ\ufdfa½ﬃİẞΐ\u0344㌕")
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(['"', "\\", ',:[]{}e"']),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)  # fmt: skip


def utf8(text: str) -> int:
    return len(text.encode())


@given(TEXTS)
def test_no_normalised_text_is_longer_than_its_bound(text: str) -> None:
    bound = utf8(text) + normalised_growth(text.encode())
    for form in ("NFC", "NFKC"):
        assert utf8(unicodedata.normalize(form, text)) <= bound
        assert utf8(unicodedata.normalize(form, text.casefold())) <= bound


def test_what_does_not_grow_costs_nothing() -> None:
    assert normalised_growth(b"plain text") == 0
    assert normalised_growth("中文字符 한국어 русское सब ไทย 😀".encode()) == 0
    assert normalised_growth(LONGEST.encode() * 10) == 300


def test_a_text_is_never_normalised_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython (3.11) sorts combining marks in quadratic time."""
    normalised_growth("é".encode())

    monkeypatch.setattr(text_size, "unicodedata", None)
    assert normalised_growth(("a" + "\u0301\u0323" * 1000).encode()) >= 0


@given(JSON)
def test_json_is_rendered_within_its_bound(value: object) -> None:
    compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    bound = utf8(compact) + rendered_growth(compact)
    assert utf8(json.dumps(value, ensure_ascii=False)) <= bound
    indented = json.dumps(value, ensure_ascii=False, indent=4)
    while "  " in indented:  # a run of blanks is a token, and the end of the line before it
        indented = indented.replace("  ", " ")
    assert utf8(indented) <= bound


@pytest.mark.parametrize("number", ["1e15", "1E+15", "-1e15", "9e20"])
def test_numbers_are_rendered_in_full(number: str) -> None:
    text = f"[{','.join([number] * 10)}]"
    assert utf8(json.dumps(json.loads(text))) <= utf8(text) + rendered_growth(text)
    assert rendered_growth(text) >= 10 * (len(f"{float(number):.1f}") - len(number))


def test_what_is_in_a_string_is_not_rendered_anew() -> None:
    assert rendered_growth(json.dumps("a, b: [1e5] {true}")) == 0
    assert rendered_growth(json.dumps({"k": 'say "e", \\'})) == 6
    assert rendered_growth("[true,false,null]") == 8
    assert rendered_growth('[""' + ',"e"' * 60_000 + "]") > 60_000 * NUMBER_GROWTH  # too many


def arguments(value: str) -> list[tuple[str, str, dict[str, Any]]]:
    """A call of a tool with one large value, on each surface."""
    found = json.loads(value)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": value}}
    use = {"type": "tool_use", "id": "c", "name": "f", "input": {"a": found}}
    blocks = [{"toolUse": {"toolUseId": "c", "name": "f", "input": {"a": found}}}]
    result = [{"toolResult": {"toolUseId": "c", "content": [{"json": {"a": found}}]}}]
    return [
        ("/v1/chat/completions", "sim-small",
         {"model": "m", "messages": [{"role": "assistant", "tool_calls": [call]}]}),
        ("/v1/responses", "sim-small", {"model": "m", "input": [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": value}]}),
        ("/v1/messages", "bedrock-claude",
         {"model": "m", "messages": [{"role": "assistant", "content": [use]}]}),
        ("/model/m/converse", "bedrock-claude",
         {"messages": [{"role": "assistant", "content": blocks}]}),
        ("/model/m/converse", "bedrock-claude",
         {"messages": [{"role": "user", "content": result}]}),
    ]  # fmt: skip


def test_arguments_and_results_of_tools_are_bounded_as_templates_render_them() -> None:
    ones = json.dumps([1] * 5000, separators=(",", ":"))
    large = json.dumps([1] * 5000)
    for path, model, body in arguments(ones):
        request = read(path, body)
        assert upstream(request, model).bound_bytes > len(large), path
        assert request.needs.input_bound_tokens > len(large), path


NORMALISED: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "sim-small",
     {"messages": [{"role": "user", "content": LONGEST * 90}]}),
    ("/v1/completions", "sim-small", {"prompt": LONGEST * 90}),
    ("/v1/responses", "sim-small", {"input": LONGEST * 90}),
    ("/v1/embeddings", "sim-embed", {"input": LONGEST * 90}),
    ("/v1/messages", "bedrock-claude", {"messages": [{"role": "user", "content": LONGEST * 90}]}),
    ("/model/m/converse", "bedrock-claude",
     {"messages": [{"role": "user", "content": [{"text": LONGEST * 90}]}]}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "model", "body"), NORMALISED)
def test_a_prompt_is_bounded_as_tokenizers_normalise_it(
    path: str, model: str, body: dict[str, Any]
) -> None:
    request = read(path, {"model": "m", **body})
    assert upstream(request, model).bound_bytes > 90 * 33
    assert request.needs.input_bound_tokens > 90 * 33
    masked = request.with_texts(["x" for _ in request.texts()])
    assert upstream(masked, model).bound_bytes < 90 * 33


def test_copies_of_a_schema_are_bounded_as_tokenizers_normalise_them() -> None:
    schema = {"$defs": {"d": {"description": LONGEST * 90}}, "items": [{"$ref": "#/$defs/d"}] * 8}
    assert expanded_bytes([(schema, "tools")]) > 8 * 90 * 33


def test_the_growth_of_a_number_is_enough() -> None:
    longest = max(len(f"{10.0**power:.1f}") for power in range(22))
    assert len("1e0") + NUMBER_GROWTH >= longest
