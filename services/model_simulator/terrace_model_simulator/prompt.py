"""What a face has read out of a request, in no provider's words."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from terrace_model_simulator.tokenizer import (
    TOKENS_PER_IMAGE,
    TOKENS_PER_MESSAGE,
    TOKENS_PER_REPLY,
    TOKENS_PER_TOOL,
    count_json_tokens,
    count_tokens,
)

Surface = Literal[
    "chat_completions",
    "completions",
    "responses",
    "embeddings",
    "converse",
    "converse_stream",
    "invoke",
    "invoke_stream",
]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. ``text`` holds all that counts as input: texts, tool calls, tool results."""

    role: str
    text: str
    images: int = 0


@dataclass(frozen=True, slots=True)
class Tool:
    """A function the model may call, with the JSON schema of its arguments."""

    name: str
    description: str = ""
    parameters: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True)
class Prompt:
    """A validated request. ``max_tokens`` None means the model's own maximum.

    ``forced_tool`` is a tool's name, "*" for any, or None. ``tools_allowed`` is False when the
    caller said that no tool may be called.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tools_allowed: bool = True
    forced_tool: str | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    json_schema: Mapping[str, object] | None = None
    """Not None: the answer is JSON of that schema ({} means any object)."""

    def input_tokens(self) -> int:
        """Input as billed: texts + 3 a message, 258 an image, tools + 4 a tool, the wanted schema,
        + 3."""
        texts = sum(
            TOKENS_PER_MESSAGE + count_tokens(m.text) + m.images * TOKENS_PER_IMAGE
            for m in self.messages
        )
        tools = sum(
            TOKENS_PER_TOOL
            + count_tokens(t.name)
            + count_tokens(t.description)
            + count_json_tokens(t.parameters)
            for t in self.tools
        )
        return texts + tools + count_json_tokens(self.json_schema or {}) + TOKENS_PER_REPLY

    def last_user_text(self) -> str:
        """Text of the last message if the user wrote it, else the empty text."""
        last = self.messages[-1]
        return last.text if last.role == "user" else ""
