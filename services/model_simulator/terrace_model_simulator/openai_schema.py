"""The body of ``POST /v1/chat/completions``, as the public API takes it. Texts, and images that
are in the body: nothing is fetched."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from terrace_model_simulator.prompt import Message, Prompt, Tool

Metadata = dict[str, str]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class TextPart(_Part):
    type: Literal["text"]
    text: str


class ImageUrl(_Part):
    url: str = Field(pattern=r"^data:image/")


class ImagePart(_Part):
    type: Literal["image_url"]
    image_url: ImageUrl


class CalledFunction(_Part):
    name: str
    arguments: str


class ToolCall(_Part):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(_Part):
    """A message; parts of it that the simulated model does not use are ignored."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: str | list[TextPart | ImagePart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        """All that counts as input."""
        texts = [self.content] if isinstance(self.content, str) else []
        if isinstance(self.content, list):
            texts = [part.text for part in self.content if isinstance(part, TextPart)]
        calls = self.tool_calls or []
        return "".join([*texts, *(call.function.name + call.function.arguments for call in calls)])

    def images(self) -> int:
        """How many there are."""
        content = self.content if isinstance(self.content, list) else []
        return sum(isinstance(part, ImagePart) for part in content)


class FunctionDefinition(_Part):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str = ""
    parameters: dict[str, Any] = Field(default_factory=dict[str, Any])


class ToolDefinition(_Part):
    type: Literal["function"]
    function: FunctionDefinition


class ChosenFunction(_Part):
    name: str


class ToolChoice(_Part):
    type: Literal["function"]
    function: ChosenFunction


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool = False
    include_obfuscation: bool = False


class JsonSchemaFormat(_Part):
    name: str
    schema_: dict[str, Any] = Field(default_factory=dict[str, Any], alias="schema")


class ResponseFormat(_Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class ChatCompletionRequest(BaseModel):
    """Every parameter of the public API; unknown ones are refused, as the public API does.

    Those typed Any are taken and have no effect on the simulated model.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    metadata: Metadata | None = Field(default=None, max_length=16)
    n: int | None = Field(default=None, ge=1, le=1)
    response_format: ResponseFormat | None = None
    stop: str | list[str] | None = Field(default=None, max_length=4)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    tools: list[ToolDefinition] | None = Field(default=None, max_length=128)
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    user: str | None = None

    audio: Any = None
    frequency_penalty: Any = None
    function_call: Any = None
    functions: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    modalities: Any = None
    moderation: Any = None
    parallel_tool_calls: Any = None
    prediction: Any = None
    presence_penalty: Any = None
    prompt_cache_key: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: Any = None
    reasoning_effort: Any = None
    safety_identifier: Any = None
    seed: Any = None
    service_tier: Any = None
    store: Any = None
    top_logprobs: Any = None
    verbosity: Any = None
    web_search_options: Any = None

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_as_list(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @property
    def include_usage(self) -> bool:
        """Whether the stream's last chunk is to carry usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def prompt(self) -> Prompt:
        """The request in the model's own words."""
        forced: str | None = None
        if self.tool_choice == "required":
            forced = "*"
        elif isinstance(self.tool_choice, ToolChoice):
            forced = self.tool_choice.function.name
        return Prompt(
            messages=tuple(Message(m.role, m.text(), m.images()) for m in self.messages),
            tools=tuple(
                Tool(t.function.name, t.function.description, t.function.parameters)
                for t in self.tools or []
            ),
            tools_allowed=self.tool_choice != "none",
            forced_tool=forced,
            max_tokens=self.max_completion_tokens or self.max_tokens,
            stop=tuple(text for text in self.stop or () if text),
            json_schema=self._json_schema(),
        )

    def _json_schema(self) -> dict[str, Any] | None:
        wanted = self.response_format
        if wanted is None or wanted.type == "text":
            return None
        return wanted.json_schema.schema_ if wanted.json_schema else {}
