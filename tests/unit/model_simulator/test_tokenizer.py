"""The bound that a gateway relies on: never more tokens than bytes."""

import json

from hypothesis import given
from hypothesis import strategies as st

from terrace_model_simulator.openai_schema import ChatCompletionRequest
from terrace_model_simulator.tokenizer import (
    TOKENS_PER_REPLY,
    count_json_tokens,
    count_tokens,
    split_tokens,
)

TEXTS = st.text() | st.text(alphabet=" aZ9_.\n\t-é漢😀", max_size=200)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@given(TEXTS)
def test_tokens_never_exceed_utf8_bytes(text: str) -> None:
    assert count_tokens(text) <= len(text.encode())


@given(TEXTS)
def test_tokens_joined_are_the_text(text: str) -> None:
    tokens = split_tokens(text)
    assert "".join(tokens) == text
    assert len(tokens) == count_tokens(text)
    assert all(tokens)


@given(TEXTS, TEXTS)
def test_a_longer_text_never_has_fewer_tokens_than_its_start(start: str, more: str) -> None:
    assert count_tokens(start + more) >= count_tokens(start)


def test_known_counts() -> None:
    assert count_tokens("") == 0
    assert count_tokens("hello world") == 2
    assert count_tokens("internationalization") == 3
    assert count_tokens("a  b") == 3
    assert count_tokens("😀😀") == 2


@given(JSON_VALUES)
def test_json_tokens_never_exceed_the_shortest_json_text(value: object) -> None:
    compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert count_json_tokens(value) <= len(compact.encode())


@given(
    st.lists(st.tuples(st.sampled_from(["user", "system", "assistant"]), TEXTS), min_size=1),
    st.lists(st.tuples(TEXTS, st.dictionaries(TEXTS, JSON_VALUES, max_size=3)), max_size=3),
)
def test_input_of_a_chat_is_bounded_by_its_body(
    turns: list[tuple[str, str]], tools: list[tuple[str, dict[str, object]]]
) -> None:
    """What a guard may count on: bytes of the body + 3, for texts, roles, tools and all."""
    body = {
        "model": "m",
        "messages": [{"role": role, "content": text} for role, text in turns],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": description, "parameters": parameters},
            }
            for description, parameters in tools
        ],
    }
    data = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
    prompt = ChatCompletionRequest.model_validate_json(data).prompt()
    assert prompt.input_tokens() <= len(data) + TOKENS_PER_REPLY
