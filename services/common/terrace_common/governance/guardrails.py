"""Guardrails: what is looked for in prompts and answers, when, and what happens then."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from terrace_common.bounded_pattern import PatternError, parse_bounded
from terrace_common.governance.sections import (
    ENVIRONMENT_PATTERN,
    NAME_PATTERN,
    URL_PATTERN,
    Problem,
    Section,
    duplicates,
    missing,
)

Phase = Literal["before", "stream", "after"]
Action = Literal["block", "mask", "flag"]
ALL_PHASES: tuple[Phase, ...] = ("before", "stream", "after")

SecretRule = Literal[
    "anthropic-key", "aws-access-key-id", "aws-secret-key", "azure-storage-key", "bearer-token",
    "connection-password", "generic-assignment", "github-token", "gitlab-token", "google-api-key",
    "huggingface-token", "jwt", "npm-token", "openai-key", "private-key", "pypi-token",
    "sendgrid-key", "slack-token", "slack-webhook", "stripe-key", "terrace-key", "twilio-key",
]  # fmt: skip
PersonalDataRule = Literal[
    "br-cpf", "card", "de-tax-id", "email", "es-dni", "fr-nir", "iban", "ip-address",
    "it-fiscal-code", "mac-address", "phone", "uk-nino", "us-ssn",
]  # fmt: skip
DEFAULT_PERSONAL_DATA: tuple[PersonalDataRule, ...] = (
    "br-cpf", "card", "de-tax-id", "email", "es-dni", "fr-nir", "iban", "it-fiscal-code", "phone",
    "uk-nino", "us-ssn",
)  # fmt: skip
GUARDRAIL_ID_PATTERN = r"^([a-z0-9]+|arn:aws[a-z-]*:bedrock:[a-z0-9-]+:\d{12}:guardrail/[a-z0-9]+)$"
GUARDRAIL_VERSION_PATTERN = r"^([1-9]\d{0,7}|DRAFT)$"
PHONE_REGION_PATTERN = r"^[A-Z]{2}$"


class _Guardrail(Section):
    name: str = Field(pattern=NAME_PATTERN)
    action: Action = "block"
    """``block``: the call is refused, or its answer ended. ``mask``: what matched is replaced by
    ``[masked:rule]``. ``flag``: it is recorded only."""
    on_failure: Literal["closed", "open"] = "closed"
    """What holds when the guardrail cannot say: ``closed`` refuses the call (503), ``open`` lets it
    pass and records that."""
    timeout_seconds: float = Field(default=2.0, gt=0, le=60, strict=False)
    """For one call of it, in one phase."""


class _LocalGuardrail(_Guardrail):
    phases: tuple[Phase, ...] = Field(default=ALL_PHASES, min_length=1, strict=False)
    """``before``: the prompt. ``stream``: an answer while it streams. ``after``: a plain answer."""


class SecretsGuardrail(_LocalGuardrail):
    """Credentials of known shapes, and values that are assigned to names like ``password``."""

    kind: Literal["secrets"]
    rules: tuple[SecretRule, ...] | None = Field(default=None, min_length=1, strict=False)
    """Of the library; unset: all."""


class PersonalDataGuardrail(_LocalGuardrail):
    """Personal data of a fixed form, with its check digits. Names and addresses are not found."""

    kind: Literal["personal_data"]
    rules: tuple[PersonalDataRule, ...] = Field(
        default=DEFAULT_PERSONAL_DATA, min_length=1, strict=False
    )
    phone_regions: tuple[Annotated[str, Field(pattern=PHONE_REGION_PATTERN)], ...] = Field(
        default=(), strict=False, max_length=8
    )
    """Countries whose numbers are known without ``+`` and country code as well."""


class PromptInjectionGuardrail(_Guardrail):
    """Phrases that try to take over the model, also behind odd characters and encodings."""

    kind: Literal["prompt_injection"]
    action: Literal["block", "flag"] = "flag"  # pyright: ignore[reportIncompatibleVariableOverride]  # fewer
    phases: tuple[Literal["before"], ...] = Field(default=("before",), min_length=1, strict=False)


class ContentPattern(Section):
    """A pattern of the user's own, in RE2's syntax without unbounded repetition."""

    name: str = Field(pattern=NAME_PATTERN)
    pattern: str = Field(min_length=1)
    ignore_case: bool = True

    @field_validator("pattern")
    @classmethod
    def _is_bounded(cls, value: str) -> str:
        try:
            parse_bounded(value)
        except PatternError as error:
            raise _wrong(str(error)) from None
        return value


class ContentGuardrail(_LocalGuardrail):
    """Words and patterns of the user's own."""

    kind: Literal["content"]
    words: tuple[Annotated[str, Field(min_length=2, max_length=100)], ...] = Field(
        default=(), strict=False, max_length=1000
    )
    """Whole words or phrases, in any case."""
    patterns: tuple[ContentPattern, ...] = Field(default=(), strict=False, max_length=100)

    @model_validator(mode="after")
    def _has_rules(self) -> "ContentGuardrail":
        if not self.words and not self.patterns:
            raise _wrong("a content guardrail needs words or patterns")
        return self


class UnitPrices(Section):
    """Micro-USD per text unit (1,000 characters), per policy of a Bedrock guardrail that is charged
    for. Defaults: none, so that a price that was not looked up is an error."""

    content: int = Field(ge=0, le=10**9)
    topic: int = Field(ge=0, le=10**9)
    sensitive_information: int = Field(ge=0, le=10**9)
    contextual_grounding: int = Field(default=0, ge=0, le=10**9)
    automated_reasoning: int = Field(default=0, ge=0, le=10**9)
    word: int = Field(default=0, ge=0, le=10**9)

    def total(self) -> int:
        """Of one text unit when every policy is charged."""
        return (
            self.content + self.topic + self.sensitive_information + self.word
            + self.contextual_grounding + self.automated_reasoning
        )  # fmt: skip


class _RemoteGuardrail(_Guardrail):
    phases: tuple[Phase, ...] = Field(default=("before", "after"), min_length=1, strict=False)
    """With ``stream`` a streamed answer is held back until it was checked as a whole."""


class BedrockGuardrail(_RemoteGuardrail):
    """Amazon Bedrock Guardrails: ``ApplyGuardrail``, billed and entered in the ledger."""

    kind: Literal["bedrock"]
    provider: str
    """A Bedrock provider of the spec: its region and endpoint, its caps and kill switch."""
    guardrail_id: str = Field(pattern=GUARDRAIL_ID_PATTERN)
    """Its id, or its ARN (of the provider's region)."""
    guardrail_version: str = Field(pattern=GUARDRAIL_VERSION_PATTERN)
    price: UnitPrices


class HttpGuardrail(_RemoteGuardrail):
    """A service of the user's own: ``POST`` JSON, see docs/gateway/guardrails.md."""

    kind: Literal["http"]
    url: str = Field(pattern=URL_PATTERN)
    token_env: str | None = Field(default=None, pattern=ENVIRONMENT_PATTERN)
    """Variable of the guard, or file of its credentials folder, with a bearer token."""


Guardrail = Annotated[
    SecretsGuardrail
    | PersonalDataGuardrail
    | PromptInjectionGuardrail
    | ContentGuardrail
    | BedrockGuardrail
    | HttpGuardrail,
    Field(discriminator="kind"),
]


def guardrail_problems(
    guardrails: Sequence[Guardrail], bedrock_regions: Mapping[str, str]
) -> Iterator[Problem]:
    """What is wrong between guardrails and the rest of the spec. ``bedrock_regions``: name ->
    region of each Bedrock provider."""
    yield from duplicates("guardrails", "guardrail", (item.name for item in guardrails))
    for index, item in enumerate(guardrails):
        if isinstance(item, ContentGuardrail):
            seen: set[str] = set()
            for place, pattern in enumerate(item.patterns):
                if pattern.name in seen:
                    path = ("guardrails", index, "patterns", place, "name")
                    yield path, f"pattern {pattern.name!r} is given twice"
                seen.add(pattern.name)
        if isinstance(item, BedrockGuardrail):
            yield from _bedrock_problems(index, item, bedrock_regions)


def _bedrock_problems(
    index: int, item: BedrockGuardrail, regions: Mapping[str, str]
) -> Iterator[Problem]:
    called = regions.get(item.provider)
    if called is None:
        path = ("guardrails", index, "provider")
        yield path, missing("Bedrock provider", item.provider, regions)
    elif item.guardrail_id.startswith("arn:"):
        region = item.guardrail_id.split(":")[3]
        if region != called:
            yield (
                ("guardrails", index, "guardrail_id"),
                f"guardrail_id is of region {region}, and provider {item.provider!r} calls"
                f" {called}",
            )


def _wrong(message: str) -> PydanticCustomError:
    """A problem of the section that is being read; pydantic knows its place."""
    return PydanticCustomError("governance", "{message}", {"message": message})
