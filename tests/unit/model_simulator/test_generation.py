"""The simulated model: deterministic, exactly as long as told, cut where told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from terrace_model_simulator.generation import answer
from terrace_model_simulator.prompt import Message, Prompt, Tool
from terrace_model_simulator.tokenizer import count_tokens

WEATHER = Tool(
    "get_weather",
    "Weather of a place",
    {
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "unit": {"enum": ["c", "f"]},
            "days": {"type": "integer"},
            "near": {"type": "object", "properties": {"deep": {"type": "boolean"}}},
            "tags": {"type": "array"},
        },
    },
)
CLOCK = Tool("get_time", "", {"type": "object", "properties": {}})


def chat(text: str, **options: object) -> Prompt:
    return Prompt((Message("user", text),), **options)  # type: ignore[arg-type]


@given(st.text(), st.integers(min_value=1, max_value=300))
def test_a_lower_limit_cuts_the_same_text(text: str, limit: int) -> None:
    whole = answer("m", chat(text), limit=1000)
    cut = answer("m", chat(text), limit=limit)
    assert cut.tokens == whole.tokens[:limit]
    assert (cut.finish == "length") == (len(whole.tokens) > limit)


@given(st.integers(min_value=0, max_value=3000))
def test_the_length_marker_is_exact_and_recounts(length: int) -> None:
    made = answer("m", chat(f"tell me [[tokens={length}]]"), limit=10_000)
    assert len(made.tokens) == length
    assert count_tokens(made.text) == length
    assert made.finish == "stop"


def test_the_same_prompt_gets_the_same_answer_and_another_gets_another() -> None:
    prompts = [chat(f"question {number}") for number in range(50)]
    texts = [answer("m", prompt, limit=100).text for prompt in prompts]
    assert texts == [answer("m", prompt, limit=100).text for prompt in prompts]
    assert len(set(texts)) == len(texts)
    assert answer("other", prompts[0], limit=100).text != texts[0]


def test_default_lengths_differ_and_stay_in_range() -> None:
    lengths = {len(answer("m", chat(str(n)), limit=1000).tokens) for n in range(300)}
    assert min(lengths) >= 16
    assert max(lengths) <= 95
    assert len(lengths) > 40


def test_only_the_last_user_message_steers() -> None:
    earlier = Prompt(
        (Message("user", "[[tokens=5]]"), Message("assistant", "ok"), Message("user", "and now?"))
    )
    assert len(answer("m", earlier, limit=1000).tokens) >= 16


@given(st.text(min_size=1, max_size=40), st.integers(min_value=1, max_value=39))
def test_text_ends_before_the_earliest_stop_sequence(said: str, at: int) -> None:
    said = said.replace("[", "(").replace("]", ")")
    stop = said[min(at, len(said) - 1) :][:3]
    made = answer("m", chat(f"[[say={said}]]", stop=("never-in-it", stop)), limit=1000)
    assert made.text == said[: said.index(stop)]
    assert made.finish == "stop_sequence"
    assert made.stop_sequence == stop


def test_a_tool_is_called_by_marker_with_arguments_of_its_schema() -> None:
    prompt = chat("how is it [[tool=get_weather]]", tools=(CLOCK, WEATHER))
    made = answer("m", prompt, limit=1000)
    assert (made.tool, made.finish) == ("get_weather", "tool_call")
    arguments = json.loads(made.text)
    assert set(arguments) == {"place", "unit", "days", "near", "tags"}
    assert arguments["unit"] in {"c", "f"}
    assert isinstance(arguments["near"]["deep"], bool)
    assert made == answer("m", prompt, limit=1000)


@pytest.mark.parametrize(
    ("options", "called"),
    [
        ({"tools": (CLOCK, WEATHER)}, None),
        ({"tools": (CLOCK, WEATHER), "forced_tool": "*"}, "get_time"),
        ({"tools": (CLOCK, WEATHER), "forced_tool": "get_weather"}, "get_weather"),
        ({"tools": (CLOCK,), "forced_tool": "missing"}, None),
        ({"tools": (CLOCK,), "forced_tool": "*", "tools_allowed": False}, None),
        ({"forced_tool": "*"}, None),
    ],
)
def test_tools_are_called_only_when_told(options: dict[str, object], called: str | None) -> None:
    assert answer("m", chat("hello", **options), limit=1000).tool == called


def test_a_tool_result_is_answered_with_text() -> None:
    prompt = Prompt(
        (Message("user", "[[tool]]"), Message("tool", "[[tool]] 21 degrees")), tools=(WEATHER,)
    )
    assert answer("m", prompt, limit=100).tool is None


def test_json_of_a_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    assert set(json.loads(answer("m", chat("x", json_schema=schema), limit=99).text)) == {"n"}
    assert isinstance(json.loads(answer("m", chat("x", json_schema={}), limit=99).text), dict)
