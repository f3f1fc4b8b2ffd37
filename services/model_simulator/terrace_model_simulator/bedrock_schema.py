"""The bodies of Bedrock Runtime: Converse, and Anthropic's own through InvokeModel. Texts and
images, whose bytes are in the body."""

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from terrace_model_simulator.prompt import Message, Prompt, Tool


class _Closed(BaseModel):
    """Unknown members are refused: what cannot be understood cannot be billed."""

    model_config = ConfigDict(strict=True, extra="forbid")


class ToolUse(_Closed):
    toolUseId: str  # noqa: N815  the API's own names, here and below
    name: str
    input: Any


class ImageSource(_Closed):
    bytes: str = Field(min_length=4)


class Image(_Closed):
    format: Literal["png", "jpeg", "gif", "webp"]
    source: ImageSource


class ToolResultContent(_Closed):
    text: str | None = None
    image: Image | None = None
    json_: Any = Field(default=None, alias="json")


class ToolResult(_Closed):
    toolUseId: str  # noqa: N815
    content: list[ToolResultContent]
    status: Literal["success", "error"] | None = None


class ContentBlock(_Closed):
    text: str | None = None
    toolUse: ToolUse | None = None  # noqa: N815
    toolResult: ToolResult | None = None  # noqa: N815
    image: Image | None = None
    cachePoint: Any = None  # noqa: N815

    def images(self) -> int:
        """How many there are, those of tool results too."""
        inner = self.toolResult.content if self.toolResult is not None else []
        return sum(part.image is not None for part in (self, *inner))

    def input_text(self) -> str:
        """All that counts as input."""
        texts = [self.text or ""]
        if self.toolUse is not None:
            texts += [self.toolUse.name, _compact(self.toolUse.input)]
        if self.toolResult is not None:
            for part in self.toolResult.content:
                texts.append(part.text or "" if part.json_ is None else _compact(part.json_))
        return "".join(texts)


class ConverseMessage(_Closed):
    role: Literal["user", "assistant"]
    content: list[ContentBlock] = Field(min_length=1)


class SystemBlock(_Closed):
    text: str = ""
    cachePoint: Any = None  # noqa: N815


class InferenceConfig(_Closed):
    maxTokens: int | None = Field(default=None, ge=1)  # noqa: N815
    temperature: float | None = Field(default=None, ge=0, le=1)
    topP: float | None = Field(default=None, ge=0, le=1)  # noqa: N815
    stopSequences: list[str] = Field(default_factory=list[str], max_length=2500)  # noqa: N815


class InputSchema(_Closed):
    json_: dict[str, Any] = Field(default_factory=dict[str, Any], alias="json")


class ToolSpec(_Closed):
    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str = ""
    inputSchema: InputSchema  # noqa: N815
    strict: bool | None = None


class ToolEntry(_Closed):
    toolSpec: ToolSpec | None = None  # noqa: N815
    cachePoint: Any = None  # noqa: N815


class NamedTool(_Closed):
    name: str


class ConverseToolChoice(_Closed):
    auto: dict[str, Any] | None = None
    any: dict[str, Any] | None = None
    tool: NamedTool | None = None


class ToolConfig(_Closed):
    tools: list[ToolEntry] = Field(min_length=1)
    toolChoice: ConverseToolChoice | None = None  # noqa: N815


RequestMetadata = Annotated[dict[str, str], Field(max_length=16)]


class ConverseRequest(_Closed):
    """Converse and ConverseStream. Members typed Any have no effect on the simulated model."""

    messages: list[ConverseMessage] = Field(min_length=1)
    system: list[SystemBlock] = Field(default_factory=list[SystemBlock])
    inferenceConfig: InferenceConfig = Field(default_factory=InferenceConfig)  # noqa: N815
    toolConfig: ToolConfig | None = None  # noqa: N815
    requestMetadata: RequestMetadata = Field(default_factory=dict[str, str])  # noqa: N815
    additionalModelRequestFields: Any = None  # noqa: N815
    additionalModelResponseFieldPaths: Any = None  # noqa: N815
    performanceConfig: Any = None  # noqa: N815
    serviceTier: Any = None  # noqa: N815

    def prompt(self) -> Prompt:
        """The request in the model's own words."""
        choice = self.toolConfig.toolChoice if self.toolConfig else None
        forced = None
        if choice is not None:
            forced = choice.tool.name if choice.tool else ("*" if choice.any is not None else None)
        specs = [t.toolSpec for t in self.toolConfig.tools if t.toolSpec] if self.toolConfig else []
        return Prompt(
            messages=(
                *(Message("system", block.text) for block in self.system),
                *(
                    Message(
                        "tool" if any(block.toolResult for block in m.content) else m.role,
                        "".join(block.input_text() for block in m.content),
                        sum(block.images() for block in m.content),
                    )
                    for m in self.messages
                ),
            ),
            tools=tuple(Tool(s.name, s.description, s.inputSchema.json_) for s in specs),
            forced_tool=forced,
            max_tokens=self.inferenceConfig.maxTokens,
            stop=tuple(text for text in self.inferenceConfig.stopSequences if text),
        )


class CountTokensInput(_Closed):
    converse: ConverseRequest


class CountTokensRequest(_Closed):
    """CountTokens, of a converse request only."""

    input: CountTokensInput


class _Open(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class AnthropicBlock(_Open):
    type: Literal["text", "tool_use", "tool_result", "image", "thinking", "redacted_thinking"]
    thinking: str = ""
    text: str = ""
    name: str = ""
    input: Any = None
    content: "str | list[AnthropicBlock] | None" = None

    def input_text(self) -> str:
        """All that counts as input."""
        texts = [self.text, self.name, self.thinking]
        if self.input is not None:
            texts.append(_compact(self.input))
        if isinstance(self.content, str):
            texts.append(self.content)
        elif self.content is not None:
            texts += [block.input_text() for block in self.content]
        return "".join(texts)

    def images(self) -> int:
        """How many there are, those of tool results too."""
        inner = self.content if isinstance(self.content, list) else []
        return (self.type == "image") + sum(block.images() for block in inner)


class AnthropicMessage(_Open):
    role: Literal["user", "assistant"]
    content: str | list[AnthropicBlock]

    def as_message(self) -> Message:
        """In the model's own words; a message with tool results is the tool's."""
        if isinstance(self.content, str):
            return Message(self.role, self.content)
        is_result = any(block.type == "tool_result" for block in self.content)
        return Message(
            "tool" if is_result else self.role,
            "".join(block.input_text() for block in self.content),
            sum(block.images() for block in self.content),
        )


class AnthropicTool(_Open):
    name: str
    description: str = ""
    input_schema: dict[str, Any]


class AnthropicToolChoice(_Open):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None


class AnthropicMetadata(_Open):
    user_id: str | None = None


class AnthropicRequest(_Closed):
    """InvokeModel and InvokeModelWithResponseStream for Anthropic's models."""

    anthropic_version: Literal["bedrock-2023-05-31"]
    max_tokens: int = Field(ge=1)
    messages: list[AnthropicMessage] = Field(min_length=1)
    system: str | list[AnthropicBlock] = ""
    stop_sequences: list[str] = Field(default_factory=list[str])
    tools: list[AnthropicTool] = Field(default_factory=list[AnthropicTool])
    tool_choice: AnthropicToolChoice | None = None
    metadata: AnthropicMetadata = Field(default_factory=AnthropicMetadata)
    anthropic_beta: Any = None
    temperature: Any = None
    thinking: Any = None
    top_k: Any = None
    top_p: Any = None

    def prompt(self) -> Prompt:
        """The request in the model's own words."""
        system = self.system
        if not isinstance(system, str):
            system = "".join(block.input_text() for block in system)
        choice = self.tool_choice
        forced = None
        if choice is not None:
            forced = "*" if choice.type == "any" else choice.name
        return Prompt(
            messages=(
                *((Message("system", system),) if system else ()),
                *(message.as_message() for message in self.messages),
            ),
            tools=tuple(Tool(t.name, t.description, t.input_schema) for t in self.tools),
            tools_allowed=choice is None or choice.type != "none",
            forced_tool=forced,
            max_tokens=self.max_tokens,
            stop=tuple(text for text in self.stop_sequences if text),
        )


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
