"""The simulated model: the same prompt always gets the same answer.

Markers in the last user message steer it:

- ``[[tokens=200]]``: the answer is 200 tokens long (before ``max_tokens`` cuts it).
- ``[[tool]]`` or ``[[tool=get_weather]]``: if tools are offered, call the first, or that one.
- ``[[say=text]]``: answer exactly this text.

Without a marker the length (16 to 95 tokens) follows from the content.
"""

import hashlib
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from terrace_model_simulator.prompt import Prompt, Tool
from terrace_model_simulator.tokenizer import split_tokens

FinishReason = Literal["stop", "length", "stop_sequence", "tool_call"]

MAX_MARKER_TOKENS = 1_000_000
_LENGTH_MARKER = re.compile(r"\[\[tokens=(\d{1,7})\]\]")
_TOOL_MARKER = re.compile(r"\[\[tool(?:=([A-Za-z0-9_-]{1,64}))?\]\]")
_TEXT_MARKER = re.compile(r"\[\[say=(.*?)\]\]", re.DOTALL)
_WORDS = re.findall(
    r"\w+",
    """
    terrace stone river garden harbor window letter winter morning copper engine silver paper
    bridge valley signal forest anchor market lantern meadow orchard pebble quarry ribbon saddle
    timber upland velvet willow yonder zephyr amber basin cedar delta ember fjord grove hollow
    """,
)
_ANY_OBJECT: dict[str, Any] = {"properties": {"answer": {"type": "string"}}}
_SENTENCE_TOKENS = 12
_MAX_SCHEMA_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model will say. ``tokens`` joined are the text, or the tool call's arguments."""

    tokens: tuple[str, ...]
    finish: FinishReason
    tool: str | None = None
    stop_sequence: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.tokens)


def answer(model: str, prompt: Prompt, *, limit: int) -> Answer:
    """The answer to a prompt, at most ``limit`` tokens long.

    A lower limit cuts the same text shorter; it does not change it.
    """
    rng = random.Random(_seed(model, prompt))  # noqa: S311  reproducible text, not a secret
    tool = _tool_to_call(prompt)
    if tool is not None:
        arguments = json.dumps(_example(tool.parameters, rng), ensure_ascii=False)
        tokens = split_tokens(arguments)
        cut = len(tokens) > limit
        return Answer(tuple(tokens[:limit]), "length" if cut else "tool_call", tool.name)

    if prompt.json_schema is not None:
        document = json.dumps(_example(prompt.json_schema or _ANY_OBJECT, rng), ensure_ascii=False)
        tokens = split_tokens(document)
        return Answer(tuple(tokens[:limit]), "length" if len(tokens) > limit else "stop")

    said = _TEXT_MARKER.search(prompt.last_user_text())
    tokens = split_tokens(said[1]) if said else _sentences(rng, _natural_length(prompt, rng))
    stopped, sequence = _cut_at_stop(tokens[:limit], prompt.stop)
    if sequence is not None:
        return Answer(tuple(stopped), "stop_sequence", stop_sequence=sequence)
    return Answer(tuple(stopped), "length" if len(tokens) > limit else "stop")


def _seed(model: str, prompt: Prompt) -> int:
    digest = hashlib.sha256(model.encode())
    for message in prompt.messages:
        digest.update(f"\0{message.role}\0{message.text}".encode())
    for tool in prompt.tools:
        digest.update(f"\0tool\0{tool.name}".encode())
    return int.from_bytes(digest.digest()[:8])


def _natural_length(prompt: Prompt, rng: random.Random) -> int:
    markers = _LENGTH_MARKER.findall(prompt.last_user_text())
    natural = rng.randrange(16, 96)
    return min(int(markers[-1]), MAX_MARKER_TOKENS) if markers else natural


def _sentences(rng: random.Random, length: int) -> list[str]:
    tokens = [
        "." if position % _SENTENCE_TOKENS == _SENTENCE_TOKENS - 1 else " " + word
        for position, word in enumerate(rng.choices(_WORDS, k=length))
    ]
    if tokens:
        tokens[0] = tokens[0].lstrip()
    return tokens


def _cut_at_stop(tokens: list[str], stop: tuple[str, ...]) -> tuple[list[str], str | None]:
    """Tokens before the earliest stop sequence; the token that it begins in is cut to fit."""
    text = "".join(tokens)
    hits = [(text.index(sequence), sequence) for sequence in stop if sequence in text]
    if not hits:
        return tokens, None
    end, sequence = min(hits)
    kept: list[str] = []
    for token in tokens:
        if end <= 0:
            break
        kept.append(token[:end])
        end -= len(token)
    return kept, sequence


def _tool_to_call(prompt: Prompt) -> Tool | None:
    if not prompt.tools or not prompt.tools_allowed:
        return None
    marker = _TOOL_MARKER.search(prompt.last_user_text())
    wanted = prompt.forced_tool or (marker and (marker[1] or "*"))
    if not wanted:
        return None
    if wanted == "*":
        return prompt.tools[0]
    return next((tool for tool in prompt.tools if tool.name == wanted), None)


def _example(schema: Mapping[str, Any], rng: random.Random, depth: int = 0) -> object:
    """A small value that fits a JSON schema's ``type``, ``enum``, and ``properties``."""
    choices = schema.get("enum")
    if isinstance(choices, list) and choices:
        return rng.choice(cast("list[object]", choices))
    kind = schema.get("type", "object")
    if kind != "object":
        simple: dict[object, object] = {
            "string": rng.choice(_WORDS),
            "integer": rng.randrange(10),
            "number": rng.randrange(10),
            "boolean": rng.random() < 0.5,
            "array": [],
        }
        return simple.get(str(kind))
    properties = schema.get("properties")
    if not isinstance(properties, dict) or depth >= _MAX_SCHEMA_DEPTH:
        return {}
    return {
        str(name): _example(cast("dict[str, Any]", part), rng, depth + 1)
        for name, part in cast("dict[object, object]", properties).items()
        if isinstance(part, dict)
    }
