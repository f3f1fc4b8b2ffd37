"""What a stack's configuration may say: the keys ``terrace:*`` of ``Pulumi.<stack>.yaml``."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.alias_generators import to_camel

from terrace_blueprints.setting_problems import (
    NAMESPACE,
    REGION,
    STACK_NAME,
    URL,
    SettingProblemError,
    sentence,
    unknown_keys,
)
from terrace_blueprints.settings_aws import foundation_arguments
from terrace_blueprints.settings_existing import ExistingSettings
from terrace_blueprints.settings_platform import (
    GatewaySettings,
    ImageName,
    ImageReference,
    InvocationLogsSettings,
    ProviderSecret,
    Variable,
    section,
)
from terrace_blueprints.spelling import nearest

REGION_KEY = "aws:region"
STAGES = (1, 2, 3)
BUILT_STAGES = (1,)
SUBSTRATES = ("local", "aws", "existing")
LAYERS = ("gateway", "sandbox", "inference", "lifecycle")
BUILT_LAYERS = ("gateway",)
PARTS = ("all", "substrate", "platform")
PLATFORM_SUFFIX = "-platform"
RELEASE = "this release, which has stage 1"

# Which stacks a key means something to: a substrate, or one part of it.
_PLACES = {
    "substrateFile": ("local",),
    "aws": ("aws substrate",),
    "substrateStack": ("aws platform",),
    "images": ("aws platform", "existing"),
    "providerSecrets": ("aws platform", "existing"),
    "gateway": ("aws platform", "existing"),
    "bedrockInvocationLogs": ("aws platform",),
    "existing": ("existing",),
    "governanceFile": ("local", "aws platform", "existing"),
    "databaseCaFile": ("aws platform", "existing"),
    "otlpEndpoint": ("local", "aws platform", "existing"),
}


class SettingsError(ValueError):
    """The configuration is wrong; ``str()`` says where, what, and what would be right."""


class Settings(BaseModel):
    """The settings of a stack. Field aliases are the configuration keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    stage: int = 1
    """1: gateway. 2: and sandboxes. 3: and inference and lifecycle."""
    substrate: str = "local"
    """Where it runs: local, aws or existing."""
    layers: tuple[str, ...] | None = None
    """Layers instead of the stage's. With one layer built there is nothing to choose yet."""
    part: str = "all"
    """Which stack this is. aws is two: what makes the cluster (substrate), and what lives in it
    (platform). local and existing are one: all."""
    substrate_file: str = Field(
        default="/var/lib/terrace/substrate.json", alias="substrateFile", min_length=1
    )
    """Where the local substrate publishes its contract."""
    aws: dict[str, Any] = Field(default_factory=dict)
    """Arguments of ``FoundationAws`` in camelCase; see ``foundation_arguments``."""
    region: str | None = Field(default=None, alias=REGION_KEY, pattern=REGION)
    """Region of the AWS provider."""
    substrate_stack: str | None = Field(default=None, alias="substrateStack", pattern=STACK_NAME)
    """Stack of the same project that made the cluster; default: this one without -platform."""
    images: dict[ImageName, ImageReference] = Field(default_factory=dict)
    """Image name -> reference by digest or immutable tag."""
    provider_secrets: dict[Variable, ProviderSecret] = Field(
        default_factory=dict, alias="providerSecrets"
    )
    """Environment variable of the translator -> where its value is kept."""
    gateway: GatewaySettings = GatewaySettings()
    """The gateway's scale, and on aws what it seals and anchors with."""
    bedrock_invocation_logs: InvocationLogsSettings | None = Field(
        default=None, alias="bedrockInvocationLogs"
    )
    """Bedrock's own log of every call; an empty mapping (`{}`) takes the defaults. Default: the
    account's setting is left as it is."""
    existing: ExistingSettings | None = None
    """The cluster that exists already."""
    governance_file: str | None = Field(default=None, alias="governanceFile", min_length=1)
    """Governance spec, relative to the project's folder; default: the substrate's own."""
    database_ca_file: str | None = Field(default=None, alias="databaseCaFile", min_length=1)
    """Certificates (PEM), relative to the project's folder, that the database server's own must
    come from. Default: TLS that does not check whose server it is."""
    otlp_endpoint: Annotated[str, Field(pattern=URL)] | None = Field(
        default=None, alias="otlpEndpoint"
    )
    """Where traces are sent; default nowhere."""

    @field_validator("stage")
    @classmethod
    def _stage(cls, stage: int) -> int:
        _one_of("stage", stage, STAGES, BUILT_STAGES)
        return stage

    @field_validator("substrate")
    @classmethod
    def _substrate(cls, substrate: str) -> str:
        _one_of("substrate", substrate, SUBSTRATES, SUBSTRATES)
        return substrate

    @field_validator("part")
    @classmethod
    def _part(cls, part: str) -> str:
        _one_of("part", part, PARTS, PARTS)
        return part

    @field_validator("layers", mode="before")
    @classmethod
    def _layers(cls, layers: Any) -> Any:
        if isinstance(layers, str):
            try:
                layers = json.loads(layers)
            except ValueError:
                layers = None
        if not isinstance(layers, list | tuple) or not layers:
            raise ValueError(f"must be a YAML list of layers; valid: {_listed(LAYERS)}")
        for layer in layers:
            _one_of("layer", layer, LAYERS, BUILT_LAYERS)
        if len(set(layers)) != len(layers):
            raise ValueError("names a layer twice")
        return tuple(layers)

    @field_validator(
        "aws",
        "images",
        "provider_secrets",
        "gateway",
        "bedrock_invocation_logs",
        "existing",
        mode="before",
    )
    @classmethod
    def _section(cls, value: Any) -> Any:
        return section(value)

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        if self.substrate == "aws" and self.part == "all":
            raise SettingProblemError(
                "part",
                "substrate aws is two stacks, so that nothing lives in the stack of the cluster it "
                "needs; valid here: substrate, platform",
            )
        if self.substrate != "aws" and self.part != "all":
            raise SettingProblemError(
                "part", f"substrate {self.substrate} is one stack; valid here: all"
            )
        place = self.substrate if self.part == "all" else f"{self.substrate} {self.part}"
        for name in self.model_fields_set:
            key = type(self).model_fields[name].alias or name
            if key in _PLACES and place not in _PLACES[key]:
                raise SettingProblemError(
                    key, f"belongs to {_listed(_PLACES[key])}; this stack is {place}"
                )
        if self.substrate == "aws" and self.region is None:
            raise SettingProblemError(
                REGION_KEY, "is required; valid: an AWS region such as us-east-1"
            )
        if place == "aws substrate":
            try:
                foundation_arguments(self.aws)
            except SettingProblemError as error:
                raise SettingProblemError(f"aws.{error.path}", str(error)) from None
        if self.substrate == "existing":
            self._existing_is_whole()
            self._gateway_is_not_on_aws()
        in_cloud = self.substrate == "aws"
        for variable, secret in self.provider_secrets.items():
            if in_cloud != (secret.arn is not None):
                right = "{arn, jsonKey}" if in_cloud else "{secret: namespace/name, key}"
                raise SettingProblemError(
                    f"providerSecrets.{variable}", f"must be {right} on {self.substrate}"
                )
        return self

    def _gateway_is_not_on_aws(self) -> None:
        for name in ("capture_key_arn", "earlier_capture_key_arns", "anchors"):
            if name in self.gateway.model_fields_set:
                raise SettingProblemError(
                    f"gateway.{to_camel(name)}",
                    "belongs to aws platform: pods have no identity at AWS here",
                )

    def _existing_is_whole(self) -> None:
        if self.existing is None:
            raise SettingProblemError("existing", "is required: which cluster, and what it offers")
        missing = [name for name in self.existing.images if name not in self.images]
        if missing:
            raise SettingProblemError(
                "images",
                f"a reference (registry/name:tag or registry/name@sha256:...) is missing for: "
                f"{_listed(missing)}",
            )
        if self.governance_file is None and not self.existing.simulate_providers:
            raise SettingProblemError(
                "governanceFile",
                "is required, unless terrace:existing.simulateProviders is true: the models, their "
                "providers and prices",
            )


def load_settings(configuration: Mapping[str, Any], source: str) -> Settings:
    """The settings in a stack's whole configuration (full keys such as ``terrace:stage``).

    ``source`` is the file to name in errors. Raises ``SettingsError`` for an unknown key, a wrong
    value, or something that is not built yet.
    """
    given: dict[str, Any] = {}
    for key, value in configuration.items():
        namespace, _, name = key.rpartition(":")
        if namespace == NAMESPACE:
            given[name] = value
        elif key == REGION_KEY:
            given[key] = value
        elif nearest(namespace, (NAMESPACE,)):
            raise SettingsError(f"{source}: unknown key {key!r}; did you mean {NAMESPACE}:{name}?")
    unknown = [name for name in given if name not in (*KEYS, REGION_KEY)]
    if unknown:
        raise SettingsError(
            f"{source}: {unknown_keys(unknown, KEYS)}; "
            f"valid keys: {_listed(f'{NAMESPACE}:{key}' for key in KEYS)}"
        )
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        problems = [sentence(Settings, detail) for detail in error.errors(include_url=False)]
    raise SettingsError("; ".join(f"{source}: {problem}" for problem in problems))


KEYS = tuple(
    alias
    for name, field in Settings.model_fields.items()
    if (alias := field.alias or name) != REGION_KEY
)


def _one_of(what: str, value: Any, valid: tuple[Any, ...], built: tuple[Any, ...]) -> None:
    if value not in valid:
        near = nearest(str(value), valid) if isinstance(value, str) else None
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"{value!r} is no {what}{hint}; valid: {_listed(valid)}")
    if value not in built:
        raise ValueError(f"{what} {value} is not built yet in {RELEASE}")


def _listed(values: Any) -> str:
    return ", ".join(str(value) for value in values)
