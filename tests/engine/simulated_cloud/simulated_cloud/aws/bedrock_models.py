"""A few real models of Amazon Bedrock: where they are offered, and which inference profiles lead to
them.

Written down by hand for tests of programs, so they may be out of date: whether an account may use a
model, and where a new profile leads, only AWS knows.
"""

from dataclasses import dataclass
from typing import Final

GEOGRAPHIES: Final[dict[str, tuple[str, ...]]] = {
    "us": ("us-east-1", "us-east-2", "us-west-2"),
    "eu": ("eu-central-1", "eu-north-1", "eu-west-1", "eu-west-3"),
    "apac": ("ap-northeast-1", "ap-northeast-2", "ap-south-1", "ap-southeast-1", "ap-southeast-2"),
    "jp": ("ap-northeast-1", "ap-northeast-3"),
    "au": ("ap-southeast-2", "ap-southeast-4"),
    "us-gov": ("us-gov-west-1", "us-gov-east-1"),
}
"""Regions that a profile of this geography can be called from, which are also those it sends calls
to."""
GLOBAL_REGIONS: Final = tuple(
    sorted(
        {region for name, regions in GEOGRAPHIES.items() if name != "us-gov" for region in regions}
    )
)


@dataclass(frozen=True)
class Model:
    """One foundation model. `on_demand`: regions where it is called by its own id."""

    id: str
    name: str
    provider: str
    on_demand: tuple[str, ...] = ()
    profiles: tuple[str, ...] = ()
    output: tuple[str, ...] = ("TEXT",)

    def regions(self) -> tuple[str, ...]:
        """Where the model is offered in any way."""
        through = {
            region
            for name in self.profiles
            for region in (GLOBAL_REGIONS if name == "global" else GEOGRAPHIES[name])
        }
        return tuple(sorted(through | set(self.on_demand)))


MODELS: Final = (
    Model(
        "anthropic.claude-opus-4-5-20251101-v1:0",
        "Claude Opus 4.5",
        "Anthropic",
        profiles=("us", "eu", "global"),
    ),
    Model(
        "anthropic.claude-opus-4-1-20250805-v1:0", "Claude Opus 4.1", "Anthropic", profiles=("us",)
    ),
    Model(
        "anthropic.claude-sonnet-4-5-20250929-v1:0",
        "Claude Sonnet 4.5",
        "Anthropic",
        profiles=("us", "eu", "jp", "au", "us-gov", "global"),
    ),
    Model(
        "anthropic.claude-haiku-4-5-20251001-v1:0",
        "Claude Haiku 4.5",
        "Anthropic",
        profiles=("us", "eu", "jp", "au", "global"),
    ),
    Model(
        "anthropic.claude-sonnet-4-20250514-v1:0",
        "Claude Sonnet 4",
        "Anthropic",
        profiles=("us", "eu", "apac", "global"),
    ),
    Model(
        "anthropic.claude-3-haiku-20240307-v1:0",
        "Claude 3 Haiku",
        "Anthropic",
        ("us-east-1", "us-west-2", "eu-central-1", "eu-west-1", "ap-southeast-2", "us-gov-west-1"),
        ("us", "eu", "apac"),
    ),
    Model(
        "amazon.nova-pro-v1:0",
        "Nova Pro",
        "Amazon",
        ("us-east-1", "us-gov-west-1"),
        ("us", "eu", "apac"),
    ),
    Model(
        "amazon.nova-lite-v1:0",
        "Nova Lite",
        "Amazon",
        ("us-east-1", "us-gov-west-1"),
        ("us", "eu", "apac"),
    ),
    Model(
        "amazon.nova-micro-v1:0",
        "Nova Micro",
        "Amazon",
        ("us-east-1", "us-gov-west-1"),
        ("us", "eu", "apac"),
    ),
    Model(
        "amazon.titan-embed-text-v2:0",
        "Titan Text Embeddings V2",
        "Amazon",
        ("us-east-1", "us-west-2", "eu-central-1", "ap-northeast-1"),
        output=("EMBEDDING",),
    ),
    Model(
        "meta.llama3-3-70b-instruct-v1:0", "Llama 3.3 70B Instruct", "Meta", ("us-east-2",), ("us",)
    ),
    Model("mistral.mistral-large-2407-v1:0", "Mistral Large (24.07)", "Mistral AI", ("us-west-2",)),
    Model(
        "openai.gpt-oss-120b-1:0",
        "gpt-oss-120b",
        "OpenAI",
        ("us-east-1", "us-east-2", "us-west-2", "eu-central-1", "eu-west-1", "ap-northeast-1"),
    ),
    Model(
        "cohere.embed-multilingual-v3",
        "Embed Multilingual",
        "Cohere",
        ("us-east-1", "us-west-2", "eu-central-1", "eu-west-1", "ap-northeast-1"),
        output=("EMBEDDING",),
    ),
)


def offered(region: str) -> list[Model]:
    """The models that can be used from `region`."""
    return [model for model in MODELS if region in model.regions()]


def profiles(region: str) -> dict[str, tuple[Model, tuple[str, ...]]]:
    """System-defined profiles that can be called from `region`: id -> model and destination regions
    (`""`: everywhere)."""
    found: dict[str, tuple[Model, tuple[str, ...]]] = {}
    for model in MODELS:
        for geography in model.profiles:
            callers = GLOBAL_REGIONS if geography == "global" else GEOGRAPHIES[geography]
            if region in callers:
                found[f"{geography}.{model.id}"] = (
                    model,
                    (region, "") if geography == "global" else callers,
                )
    return found
