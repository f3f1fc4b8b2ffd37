"""The governance spec: who may call what, declared in one YAML file.

``load_governance`` is the only way in from text; its errors name the file and the line.
Nothing here does I/O. Money is in micro-USD, time in seconds.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from terrace_common.governance.alerts import Alerts, alert_problems
from terrace_common.governance.authentication import Authentication, authentication_problems
from terrace_common.governance.catalogue import (
    BedrockProvider,
    Defaults,
    Model,
    OpenAIProvider,
    Provider,
    Residency,
    route_problems,
    upstream_problems,
)
from terrace_common.governance.guardrails import Guardrail, guardrail_problems
from terrace_common.governance.organisation import App, Key, Org, Team, User, organisation_problems
from terrace_common.governance.places import ALL_PROBLEMS, lined_problems
from terrace_common.governance.policies import Policy, policy_problems
from terrace_common.governance.quotas import quota_problems
from terrace_common.governance.sections import Problem, Section, duplicates, missing
from terrace_common.yaml_lines import YamlError, read_lined_yaml


class GovernanceError(ValueError):
    """The spec is wrong. ``str()`` has one ``source:line: what`` per problem."""

    def __init__(self, source: str, problems: list[tuple[int, str]]) -> None:
        self.source = source
        self.problems = sorted(problems)
        super().__init__("\n".join(f"{source}:{line}: {what}" for line, what in self.problems))


class Governance(Section):
    """The whole spec. Names are unique, every reference leads somewhere, every model has a price.

    Every section but the catalogue is optional; a spec without ``teams`` accepts keys of any team.
    """

    version: Literal[1]
    price_version: str = Field(min_length=1, max_length=64)
    defaults: Defaults = Defaults()
    residency: Residency | None = None
    providers: tuple[Provider, ...] = Field(min_length=1, strict=False)
    models: tuple[Model, ...] = Field(min_length=1, strict=False)
    orgs: tuple[Org, ...] = Field(default=(), strict=False)
    teams: tuple[Team, ...] = Field(default=(), strict=False)
    users: tuple[User, ...] = Field(default=(), strict=False)
    apps: tuple[App, ...] = Field(default=(), strict=False)
    keys: tuple[Key, ...] = Field(default=(), strict=False)
    policies: tuple[Policy, ...] = Field(default=(), strict=False)
    guardrails: tuple[Guardrail, ...] = Field(default=(), strict=False)
    authentication: Authentication | None = None
    alerts: Alerts | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> "Governance":
        problems = [*self._catalogue_problems(), *self._reference_problems()]
        if problems:
            # Only the first in words; load_governance lists all of them, each with its line.
            context = {"problems": problems, "first": problems[0][1]}
            raise PydanticCustomError(ALL_PROBLEMS, "{first}", context)
        return self

    def _catalogue_problems(self) -> Iterator[Problem]:
        yield from duplicates("providers", "provider", (p.name for p in self.providers))
        providers = {provider.name: provider for provider in self.providers}
        names: set[str] = set()
        for index, model in enumerate(self.models):
            if model.provider not in providers:
                yield ("models", index, "provider"), missing("provider", model.provider, providers)
            else:
                yield from upstream_problems(index, model, providers[model.provider])
            if model.max_output_tokens > model.context_tokens:
                yield (
                    ("models", index, "max_output_tokens"),
                    "max_output_tokens must not be above context_tokens",
                )
            for name in (model.name, *model.aliases):
                if name in names:
                    field = "name" if name == model.name else "aliases"
                    yield ("models", index, field), f"model name {name!r} is given twice"
                names.add(name)
            yield from quota_problems(("models", index), model.quotas)
        for index, provider in enumerate(self.providers):
            yield from quota_problems(("providers", index), provider.quotas)
        yield from route_problems(self.models)

    def _reference_problems(self) -> Iterator[Problem]:
        models = {name for model in self.models for name in (model.name, *model.aliases)}
        yield from policy_problems(
            self.policies,
            models=models,
            providers={provider.name for provider in self.providers},
            guardrails=set(self.guardrail_names),
        )
        yield from organisation_problems(
            orgs=self.orgs,
            teams=self.teams,
            users=self.users,
            apps=self.apps,
            keys=self.keys,
            policies={policy.name for policy in self.policies},
            models=models,
        )
        bedrock = {p.name: p.region for p in self.providers if isinstance(p, BedrockProvider)}
        yield from guardrail_problems(self.guardrails, bedrock)
        yield from authentication_problems(
            self.authentication,
            apps=[app.name for app in self.apps],
            teams=[team.name for team in self.teams],
        )
        yield from alert_problems(self.alerts)

    @property
    def guardrail_names(self) -> tuple[str, ...]:
        """Of the guardrails that policies may name, in the order of the file."""
        return tuple(guardrail.name for guardrail in self.guardrails)

    @cached_property
    def _by_name(self) -> dict[str, Model]:
        return {name: model for model in self.models for name in (model.name, *model.aliases)}

    @cached_property
    def _providers_by_name(self) -> dict[str, OpenAIProvider | BedrockProvider]:
        return {provider.name: provider for provider in self.providers}

    def find_model(self, name: str) -> Model | None:
        """The model with this name or alias, or ``None``."""
        return self._by_name.get(name)

    def provider_of(self, model: Model) -> OpenAIProvider | BedrockProvider:
        """The provider that serves ``model``, a model of this spec."""
        return self._providers_by_name[model.provider]

    def output_limit(self, model: Model, requested: int | None) -> int:
        """``max_tokens`` of the upstream call: as asked, or the default, within the maximum."""
        wanted = self.defaults.max_output_tokens if requested is None else requested
        return min(wanted, model.max_output_tokens)


def load_governance(text: str, source: str) -> Governance:
    """Parse and validate a governance spec. ``source`` (a file name) is used in errors only.

    Raises ``GovernanceError`` naming ``source`` and the line of each problem; an unknown key lists
    the valid ones.
    """
    try:
        document = read_lined_yaml(text)
    except YamlError as problem:
        raise GovernanceError(source, [(problem.line, problem.message)]) from problem
    try:
        return Governance.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        raise GovernanceError(source, lined_problems(Governance, document, details)) from None
