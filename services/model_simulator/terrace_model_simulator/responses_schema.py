"""The body of ``POST /v1/responses``, and of its token counter, as the public API takes it. Text
only, and nothing that the provider would have to keep."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from terrace_model_simulator.openai_schema import FunctionDefinition, Metadata
from terrace_model_simulator.prompt import Message, Prompt, Tool


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class ResponsePart(_Part):
    type: Literal[
        "input_text", "output_text", "refusal", "summary_text", "reasoning_text", "input_image"
    ]
    image_url: str | None = Field(default=None, pattern=r"^data:image/")
    text: str = ""
    refusal: str = ""


class ResponseItem(_Part):
    """An item of the input; parts of it that the simulated model does not use are ignored."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["developer", "system", "user", "assistant"] | None = None
    content: str | list[ResponsePart] | None = None
    call_id: str | None = None
    name: str = ""
    arguments: str = ""
    output: str | list[ResponsePart] = ""
    summary: list[ResponsePart] = Field(default_factory=list[ResponsePart])

    def as_message(self) -> Message:
        """In the model's own words."""
        if self.type == "function_call_output":
            return Message("tool", _text(self.output))
        role = self.role or "assistant"
        text = _text(self.content) + self.name + self.arguments + _text(self.summary)
        return Message(role, text, _images(self.content))


class ResponseTool(FunctionDefinition):
    type: Literal["function"]


class ChosenTool(_Part):
    type: Literal["function"]
    name: str


class TextFormat(_Part):
    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] = Field(default_factory=dict[str, Any], alias="schema")


class TextConfig(_Part):
    format: TextFormat | None = None


class InputTokensRequest(BaseModel):
    """What can be counted before it is asked."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    input: str | list[ResponseItem] = ""
    instructions: str | None = None
    tools: list[ResponseTool] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    text: TextConfig | None = None
    parallel_tool_calls: Any = None
    reasoning: Any = None
    truncation: Any = None

    @property
    def max_tokens(self) -> int | None:
        """The limit of the answer."""
        return None

    def prompt(self) -> Prompt:
        """The request in the model's own words."""
        forced: str | None = None
        if self.tool_choice == "required":
            forced = "*"
        elif isinstance(self.tool_choice, ChosenTool):
            forced = self.tool_choice.name
        said = (
            (Message("user", self.input),)
            if isinstance(self.input, str)
            else tuple(item.as_message() for item in self.input)
        )
        system = (Message("system", self.instructions),) if self.instructions else ()
        return Prompt(
            messages=(*system, *said),
            tools=tuple(Tool(t.name, t.description, t.parameters) for t in self.tools or []),
            tools_allowed=self.tool_choice != "none",
            forced_tool=forced,
            max_tokens=self.max_tokens,
            json_schema=self._json_schema(),
        )

    def _json_schema(self) -> dict[str, Any] | None:
        wanted = self.text.format if self.text else None
        return None if wanted is None or wanted.type == "text" else wanted.schema_


class ResponsesRequest(InputTokensRequest):
    """A request for a response. Members typed Any have no effect on the simulated model."""

    input: str | list[ResponseItem] = Field(min_length=1)
    max_output_tokens: int | None = Field(default=None, ge=1)
    metadata: Metadata | None = Field(default=None, max_length=16)
    store: bool | None = None
    stream: bool | None = None
    user: str | None = None
    include: Any = None
    prompt_cache_key: Any = None
    service_tier: Any = None
    stream_options: Any = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_logprobs: Any = None
    top_p: float | None = Field(default=None, ge=0, le=1)

    @property
    def max_tokens(self) -> int | None:
        """The limit of the answer."""
        return self.max_output_tokens


def _images(value: str | list[ResponsePart] | None) -> int:
    return sum(part.type == "input_image" for part in value) if isinstance(value, list) else 0


def _text(value: str | list[ResponsePart] | None) -> str:
    if isinstance(value, list):
        return "".join(part.text + part.refusal for part in value)
    return value or ""
