"""The catalogue: providers, and the models that clients can ask for."""

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from terrace_common.bedrock import parse_model
from terrace_common.governance.quotas import Quotas
from terrace_common.governance.regions import bedrock_regions
from terrace_common.governance.sections import (
    ENVIRONMENT_PATTERN,
    NAME_PATTERN,
    PATTERNS_IN_WORDS,
    REGION_PATTERN,
    RESIDENCY_PATTERN,
    UPSTREAM_PATTERN,
    URL_PATTERN,
    Problem,
    Section,
    is_callable,
    listed,
)
from terrace_common.prices import Price
from terrace_common.yaml_lines import DocumentPath

AWS_KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""Names of the access keys that Bedrock providers with ``credentials: keys`` are called with."""


_IN_ASCII = ", in ASCII, with a host and a port from 1 to 65535"


class Defaults(Section):
    """Bounds that hold for every call."""

    max_output_tokens: int = Field(default=1024, ge=1, le=10_000_000)
    """Injected as ``max_tokens`` when the client names none, within the model's maximum."""
    hard_stream_limit_seconds: int = Field(default=600, ge=1, le=86_400)
    """No upstream call lives longer than this."""
    reservation_overhead_tokens: int = Field(default=64, ge=0, le=1_000_000)
    """Input tokens reserved on top of the bytes sent, for what a chat template adds."""


class Breaker(Section):
    """When a deployment, or a provider, leaves the candidates, and for how long."""

    unknowns: int = Field(default=5, ge=1, le=1000)
    """So many unknown outcomes of one deployment, one after the other, open it."""
    error_percent: int = Field(default=50, ge=1, le=100)
    """So many percent of failed calls within the window open it."""
    least_calls: int = Field(default=20, ge=1, le=100_000)
    """The share of failed calls counts from so many calls on."""
    window_seconds: int = Field(default=30, ge=1, le=3600)
    open_seconds: int = Field(default=10, ge=1, le=3600)
    """Then one call at a time tries it; each failed try doubles the wait, at most eightfold."""


OutputLimitField = Literal["max_tokens", "max_completion_tokens"]
_OPENAI = re.compile(r"https://([a-z]+\.)?api\.openai\.com(:443)?(/|$)", re.IGNORECASE)
"""Its address, and those of its regions (``eu.api.openai.com``)."""


class OpenAIProvider(Section):
    """An upstream that speaks the OpenAI API."""

    name: str = Field(pattern=NAME_PATTERN)
    kind: Literal["openai"]
    api_base: str = Field(pattern=URL_PATTERN)
    bill_url: str | None = Field(default=None, pattern=URL_PATTERN)
    """Where the provider's own log is read by ``reconcile``."""
    api_key_env: str = Field(default="TERRACE_SIMULATOR_API_KEY", pattern=ENVIRONMENT_PATTERN)
    """Environment variable of the translator that holds the credential."""
    relay: bool = False
    """Whether calls in OpenAI's own format pass without the translator, their bytes untouched."""
    output_limit_field: OutputLimitField | None = None
    """The field of a chat request that it reads the output limit from. Left out:
    ``max_completion_tokens`` of OpenAI itself; else ``max_tokens``, which every compatible upstream
    knows."""
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    """Calls at a time of one replica; above it a call goes to another candidate or is refused."""
    breaker: Breaker = Breaker()
    quotas: Quotas = ()
    """Caps of all calls to it. A provider over its cap leaves the candidates."""

    @property
    def is_openai(self) -> bool:
        """Whether it is OpenAI itself: what only its own API has may be sent."""
        return _OPENAI.match(self.api_base) is not None

    @field_validator("api_base")
    @classmethod
    def _is_callable(cls, value: str) -> str:
        if not is_callable(value):
            what = PATTERNS_IN_WORDS[URL_PATTERN] + _IN_ASCII
            raise PydanticCustomError("governance", "{what}", {"what": what})
        return value


class BedrockProvider(Section):
    """Amazon Bedrock Runtime, or something that speaks like it at ``endpoint``."""

    name: str = Field(pattern=NAME_PATTERN)
    kind: Literal["bedrock"]
    region: str = Field(pattern=REGION_PATTERN)
    endpoint: str | None = Field(default=None, pattern=URL_PATTERN)
    """Unset: AWS's own endpoint of the region."""
    bill_url: str | None = Field(default=None, pattern=URL_PATTERN)
    credentials: Literal["keys", "ambient"] = "keys"
    """``keys``: access keys, ``AWS_KEY_VARIABLES``, of the translator, and of the guard for the
    provider's guardrails. ``ambient``: the identity of the pod (EKS Pod Identity), so that there is
    no key at all."""
    max_concurrent: int | None = Field(default=None, ge=1, le=100_000)
    """Calls at a time of one replica; above it a call goes to another candidate or is refused."""
    breaker: Breaker = Breaker()
    quotas: Quotas = ()
    upstream_headroom_percent: int = Field(default=10, ge=0, le=99)
    """So much of AWS's own quotas is left to others who call with this account."""


Provider = Annotated[OpenAIProvider | BedrockProvider, Field(discriminator="kind")]


AUTO = "auto"
"""What a client asks for that leaves the choice of the model to the gateway."""

ModelFeature = Literal["tools", "images", "json_schema", "streaming", "reasoning", "embeddings"]
SurfaceName = Literal[
    "chat", "completions", "responses", "messages", "count_tokens", "embeddings", "converse"
]
LatencyClass = Literal["interactive", "standard", "batch"]

_CHAT_FEATURES: frozenset[ModelFeature] = frozenset(
    {"tools", "json_schema", "streaming", "reasoning"}
)
_CHAT_SURFACES: frozenset[SurfaceName] = frozenset(
    {"chat", "completions", "responses", "messages", "count_tokens"}
)
_BEDROCK_SURFACES: frozenset[SurfaceName] = frozenset({*_CHAT_SURFACES, "converse"})


class Canary(Section):
    """A model that takes over a share of the calls of another."""

    model: str
    percent: int = Field(ge=0, le=100)


class Model(Section):
    """A model that clients can ask for by ``name`` or by one of ``aliases``."""

    name: str = Field(pattern=NAME_PATTERN)
    provider: str
    upstream_model: str = Field(pattern=UPSTREAM_PATTERN)
    context_tokens: int = Field(ge=1, le=100_000_000)
    max_output_tokens: int = Field(ge=1, le=10_000_000)
    price: Price
    aliases: tuple[Annotated[str, Field(pattern=UPSTREAM_PATTERN)], ...] = Field(
        default=(), strict=False
    )
    kind: Literal["chat", "embeddings"] = "chat"
    features: tuple[ModelFeature, ...] | None = Field(default=None, strict=False)
    """What it can do. Left out: everything but images for a chat model."""
    max_tokens_per_image: int | None = Field(default=None, ge=0, le=1_000_000)
    """Input tokens that one image counts as at most (0 where images are billed apart, at a price
    each). Left out: images are refused, because nothing bounds what they cost."""
    dimensions: int = Field(default=2048, ge=1, le=1_000_000)
    """Numbers of one vector of kind ``embeddings``, at most, where the client asks for none: it
    bounds how many texts one answer can hold."""
    latency: LatencyClass = "standard"
    regions: tuple[Annotated[str, Field(pattern=RESIDENCY_PATTERN)], ...] | None = Field(
        default=None, strict=False
    )
    """Where prompts may be processed. Left out: read from the name on Bedrock, else not known."""
    surfaces: tuple[SurfaceName, ...] | None = Field(default=None, strict=False)
    """Left out: every surface that its kind and provider have."""
    fallbacks: tuple[str, ...] = Field(default=(), strict=False)
    """Names of models that are asked in this order when this one cannot answer."""
    canary: Canary | None = None
    hidden: bool = False
    """Not listed and never chosen by ``auto``; whoever knows the name may ask for it."""
    base_model: str | None = Field(default=None, pattern=UPSTREAM_PATTERN)
    """Id of the foundation model behind an application inference profile, whose price it has."""
    quotas: Quotas = ()
    """Caps of all calls to it, whoever makes them."""
    upstream_headroom_percent: int | None = Field(default=None, ge=0, le=99)
    """Left out: its provider's. Only on Bedrock, whose quotas are synced."""
    output_burndown: int = Field(default=1, ge=1, le=100)
    """So many times an output token counts against Bedrock's quotas on tokens."""

    @property
    def able(self) -> frozenset[ModelFeature]:
        """What it can do."""
        if self.features is not None:
            return frozenset(self.features)
        return _CHAT_FEATURES if self.kind == "chat" else frozenset({"embeddings"})

    def served_on(self, provider: "OpenAIProvider | BedrockProvider") -> frozenset[SurfaceName]:
        """The surfaces that it can be called on; ``provider`` is its own."""
        if self.kind == "embeddings":
            possible: frozenset[SurfaceName] = frozenset({"embeddings"})
        elif isinstance(provider, BedrockProvider):
            possible = _BEDROCK_SURFACES
        else:
            possible = _CHAT_SURFACES
        return possible if self.surfaces is None else possible & frozenset(self.surfaces)

    def processed_in(self, provider: "OpenAIProvider | BedrockProvider") -> tuple[str, ...]:
        """Regions, or beginnings such as ``eu-*``, that may see a prompt; empty: not known."""
        if self.regions is not None:
            return self.regions
        if isinstance(provider, BedrockProvider):
            return bedrock_regions(self.upstream_model, provider.region)
        return ()


class Residency(Section):
    """Where prompts may be processed. Policies compare it with the regions that the models of the
    spec reach; the guard does not read it."""

    regions: tuple[Annotated[str, Field(pattern=RESIDENCY_PATTERN)], ...] = Field(
        min_length=1, strict=False
    )
    """Names of regions, or beginnings such as ``eu-*``."""

    def allows(self, region: str) -> bool:
        """Whether a call may be processed in ``region``. Of a global inference profile the region
        is not known (the empty text): never."""
        return any(
            region.startswith(allowed[:-1]) if allowed.endswith("*") else region == allowed
            for allowed in self.regions
        )


def upstream_problems(
    index: int, model: Model, provider: OpenAIProvider | BedrockProvider
) -> Iterator[Problem]:
    """On Bedrock a model is named as AWS names it, and an ARN is of the provider's region."""
    if not isinstance(provider, BedrockProvider):
        return
    path: DocumentPath = ("models", index, "upstream_model")
    try:
        found = parse_model(model.upstream_model)
    except ValueError as problem:
        yield path, f"upstream_model {problem}"
        return
    if found.region is not None and found.region != provider.region:
        yield (
            path,
            f"upstream_model is of region {found.region or 'none'}, and provider"
            f" {provider.name!r} calls {provider.region}",
        )
    if found.kind == "application-inference-profile" and model.base_model is None:
        yield (
            ("models", index, "base_model"),
            "base_model is required for an application inference profile: the id of the foundation"
            " model, or of the profile, that it was copied from",
        )


def route_problems(models: Sequence[Model]) -> Iterator[Problem]:
    """What is wrong with the fallbacks, canaries and features of the models of a spec: names that
    are not declared, a model that leads back to itself, what its kind cannot do."""
    by_name = {model.name: model for model in models}
    for index, model in enumerate(models):
        if AUTO in (model.name, *model.aliases):
            yield (
                ("models", index, "name"),
                f"{AUTO!r} is how clients leave the choice to the gateway; take another name",
            )
        for position, name in enumerate(model.fallbacks):
            path: DocumentPath = ("models", index, "fallbacks", position)
            yield from _route_problem(by_name, model, name, path)
        if len(set(model.fallbacks)) < len(model.fallbacks):
            yield ("models", index, "fallbacks"), "a fallback is given twice"
        if model.canary is not None:
            path = ("models", index, "canary", "model")
            yield from _route_problem(by_name, model, model.canary.model, path)
        if model.features is not None and ("embeddings" in model.features) != (
            model.kind == "embeddings"
        ):
            yield (
                ("models", index, "features"),
                "a model of kind embeddings has the feature embeddings, and no other kind has",
            )
    yield from _cycles(models, by_name)


def _route_problem(
    by_name: dict[str, Model], model: Model, name: str, path: DocumentPath
) -> Iterator[Problem]:
    other = by_name.get(name)
    if other is None:
        yield path, f"model {name!r} is not declared; declared: {listed(by_name)}"
    elif other.kind != model.kind:
        yield path, f"model {name!r} is of kind {other.kind}, and {model.name!r} of {model.kind}"


def _cycles(models: Sequence[Model], by_name: dict[str, Model]) -> Iterator[Problem]:
    """One problem for each model that its own fallbacks and canaries lead back to."""
    for index, model in enumerate(models):
        waiting = [(name, (model.name, name)) for name in _routes(model)]
        seen: set[str] = set()
        while waiting:
            name, way = waiting.pop()
            if name == model.name:
                place = "canary" if model.canary and model.canary.model == way[1] else "fallbacks"
                yield (
                    ("models", index, place),
                    f"fallbacks and canaries go in a circle: {' -> '.join(way)}",
                )
                break
            if name in seen or name not in by_name:
                continue
            seen.add(name)
            waiting += [(other, (*way, other)) for other in _routes(by_name[name])]


def _routes(model: Model) -> tuple[str, ...]:
    return (*model.fallbacks, *((model.canary.model,) if model.canary else ()))
