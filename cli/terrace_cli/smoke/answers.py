"""What the clients of `terrace smoke` bring back: an answer of a model, or how it was refused."""

from dataclasses import dataclass

TIMEOUT_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a model said through one surface."""

    text: str
    input_tokens: int
    output_tokens: int
    chunks: int = 1


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """How the gateway said no: status, error code of the contract, and the Retry-After header."""

    status: int
    code: str
    retry_after: str | None = None

    def __str__(self) -> str:
        return f"{self.status} {self.code}"
