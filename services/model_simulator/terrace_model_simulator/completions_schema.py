"""The bodies of ``POST /v1/completions`` and ``/v1/embeddings``. Text only, one answer."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from terrace_model_simulator.openai_schema import StreamOptions
from terrace_model_simulator.prompt import Message, Prompt
from terrace_model_simulator.tokenizer import count_tokens


class CompletionRequest(BaseModel):
    """Every parameter of the public API; unknown ones are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    prompt: str
    max_tokens: int | None = Field(default=None, ge=1)
    n: int | None = Field(default=None, ge=1, le=1)
    best_of: int | None = Field(default=None, ge=1, le=1)
    stop: str | list[str] | None = Field(default=None, max_length=4)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    suffix: str | None = None
    user: str | None = None
    echo: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    logprobs: Any = None
    presence_penalty: Any = None
    seed: Any = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, value: object) -> object:
        return value[0] if isinstance(value, list) and len(value) == 1 else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]

    @property
    def metadata(self) -> dict[str, str] | None:
        """This API has none."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether the stream's last chunk is to carry usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    def prompt_of(self) -> Prompt:
        """The request in the model's own words."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return Prompt(
            messages=(Message("user", self.prompt + (self.suffix or "")),),
            max_tokens=self.max_tokens,
            stop=tuple(text for text in stop if text),
        )


class EmbeddingsRequest(BaseModel):
    """Every parameter of the public API; unknown ones are refused."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    input: str | list[str] = Field(min_length=1)
    dimensions: int | None = Field(default=None, ge=1, le=4096)
    encoding_format: Literal["float", "base64"] = "float"
    user: str | None = None

    @property
    def texts(self) -> list[str]:
        """What is embedded, each apart."""
        return [self.input] if isinstance(self.input, str) else self.input

    def input_tokens(self) -> int:
        """Input as billed."""
        return sum(count_tokens(text) for text in self.texts)
