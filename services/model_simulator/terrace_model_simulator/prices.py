"""The provider's own price table. Written apart from the gateway's price book on purpose."""

from importlib import resources
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

TOKENS_PER_PRICE_UNIT = 1_000_000

Api = Literal["openai", "bedrock"]


class PriceTableError(ValueError):
    """The price table cannot be read; the message names the file and the property."""


class ModelEntry(BaseModel):
    """One model on offer. Prices in micro-USD per million tokens, sizes in tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    api: Api
    context_tokens: int = Field(gt=0)
    max_output_tokens: int = Field(gt=0)
    input_micro_usd_per_mtok: int = Field(ge=0)
    output_micro_usd_per_mtok: int = Field(ge=0)

    def cost_micro_usd(self, input_tokens: int, output_tokens: int) -> int:
        """Price of one call, rounded up to a whole micro-USD once, over the sum of both parts."""
        return cost_micro_usd(
            input_tokens,
            output_tokens,
            input_price=self.input_micro_usd_per_mtok,
            output_price=self.output_micro_usd_per_mtok,
        )


class PriceTable(BaseModel):
    """All models on offer, by the name that callers use."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
    models: dict[str, ModelEntry] = Field(min_length=1)

    def find(self, name: str, api: Api) -> ModelEntry | None:
        """The model of that name if this API offers it."""
        entry = self.models.get(name)
        return entry if entry is not None and entry.api == api else None

    def offered(self, api: Api) -> list[str]:
        """Names of the models that this API offers, in the table's order."""
        return [name for name, entry in self.models.items() if entry.api == api]


def cost_micro_usd(
    input_tokens: int, output_tokens: int, *, input_price: int, output_price: int
) -> int:
    """Micro-USD for a call: ``ceil((input * price + output * price) / 1_000_000)``, exact.

    Prices are micro-USD per million tokens. Integer arithmetic only.
    """
    if min(input_tokens, output_tokens, input_price, output_price) < 0:
        raise ValueError("tokens and prices must not be negative")
    whole, rest = divmod(
        input_tokens * input_price + output_tokens * output_price, TOKENS_PER_PRICE_UNIT
    )
    return whole + (1 if rest else 0)


def load_price_table(path: Path | None) -> PriceTable:
    """Read the table from ``path``, or the packaged one. Raises PriceTableError."""
    source = "the packaged prices.yaml" if path is None else str(path)
    try:
        if path is None:
            text = resources.files(__package__ or "").joinpath("prices.yaml").read_text("utf-8")
        else:
            text = path.read_text("utf-8")
        return PriceTable.model_validate(yaml.safe_load(text))
    except OSError as error:
        raise PriceTableError(f"{source}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise PriceTableError(f"{source}: not valid YAML: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise PriceTableError(f"{source}: {where}: {first['msg']}") from error
