"""The price book: prices by provider and model, each from a date on.

A model's inline ``price`` in the governance spec is the simplest book. An entry of a book that is
in force goes before it.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from terrace_common.prices.price import Price
from terrace_common.yaml_lines import YamlError, read_lined_yaml

VERSION_PATTERN = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"

Premium = Annotated[int, Field(ge=-10_000, le=100_000)]


class PriceBookError(ValueError):
    """The book is wrong. ``str()`` has one ``source:line: what`` per problem."""


class PriceEntry(BaseModel):
    """The price of one model of one provider from a moment on."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str = Field(min_length=1, max_length=63)
    """Name of a provider of the governance spec, or ``*``."""
    model: str = Field(min_length=1, max_length=256)
    """As the provider names it. On Bedrock the id of a foundation model covers its profiles."""
    effective_from: AwareDatetime
    price: Price
    regional_premium_basis_points: Premium = 0
    """Added when a Bedrock model is called through a geographic profile (1000 = a tenth)."""
    batch_premium_basis_points: Premium = 0
    """Added for models of the latency class ``batch`` (-5000 = half price)."""


class PriceBook(BaseModel):
    """One version of the book. It never changes; a new price is a new version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str = Field(pattern=VERSION_PATTERN)
    entries: tuple[PriceEntry, ...] = Field(min_length=1, max_length=10_000)

    @model_validator(mode="after")
    def _one_price_at_a_time(self) -> "PriceBook":
        seen: set[tuple[str, str, datetime]] = set()
        for index, entry in enumerate(self.entries):
            identity = (entry.provider, entry.model, entry.effective_from)
            if identity in seen:
                raise PydanticCustomError(
                    "price_book",
                    "{message}",
                    {
                        "message": f"{entry.model!r} of {entry.provider!r} has two prices from"
                        " one moment on",
                        "path": ("entries", index),
                    },
                )
            seen.add(identity)
        return self

    def entry(self, *, provider: str, models: Iterable[str], at: datetime) -> PriceEntry | None:
        """The entry in force at ``at``; of several ``models`` (names of one) the first that has
        one, and of one model the provider's own before ``*``."""
        for model in models:
            for whose in (provider, "*"):
                found = [
                    entry
                    for entry in self.entries
                    if entry.provider == whose
                    and entry.model == model
                    and entry.effective_from <= at
                ]
                if found:
                    return max(found, key=lambda entry: entry.effective_from)
        return None

    def next_change(self, after: datetime) -> datetime | None:
        """When the next entry comes into force."""
        moments = (entry.effective_from for entry in self.entries)
        return min((moment for moment in moments if moment > after), default=None)


def load_price_book(text: str, source: str) -> PriceBook:
    """Parse and validate a price book in YAML. ``source`` (a file name) is used in errors only.

    Raises ``PriceBookError`` naming ``source`` and the line of each problem.
    """
    try:
        document = read_lined_yaml(text)
    except YamlError as problem:
        raise PriceBookError(f"{source}:{problem.line}: {problem.message}") from problem
    try:
        return PriceBook.model_validate(document.data)
    except ValidationError as error:
        lines = [
            (
                document.line_of(detail.get("ctx", {}).get("path", detail["loc"])),
                ".".join(str(part) for part in detail["loc"]) or "the file",
                detail["msg"],
            )
            for detail in error.errors(include_url=False, include_input=False)
        ]
        raise PriceBookError(
            "\n".join(f"{source}:{line}: {where}: {what}" for line, where, what in sorted(lines))
        ) from None
