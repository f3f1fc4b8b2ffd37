"""Who may call with a token of an identity provider instead of a virtual key."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from terrace_common.governance.sections import (
    NAME_PATTERN,
    URL_PATTERN,
    Problem,
    Section,
    duplicates,
    missing,
    stays_inside,
)

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
DEFAULT_ALGORITHMS: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
AdminRole = Literal["admin", "auditor", "viewer"]
CLAIM_PATTERN = r"^[A-Za-z0-9_:/.-]{1,128}$"
KUBERNETES_NAME_PATTERN = r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$"


class _Issuer(Section):
    name: str = Field(pattern=NAME_PATTERN)
    issuer: str = Field(pattern=URL_PATTERN)
    """The ``iss`` claim to the letter; its keys are found by OpenID Connect discovery there."""
    audiences: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1, strict=False)
    """One of them must be in ``aud``."""
    algorithms: tuple[Algorithm, ...] = Field(
        default=DEFAULT_ALGORITHMS, min_length=1, strict=False
    )
    jwks_url: str | None = Field(default=None, pattern=URL_PATTERN)
    """Where the keys are; unset: discovery."""
    ca_file: str | None = None
    """Certificates (PEM) that the issuer's server is checked with; unset: the system's."""
    bearer_file: str | None = None
    """A token to show when keys are fetched (a cluster's issuer asks for one); read anew each
    time."""
    clock_skew_seconds: int = Field(default=30, ge=0, le=300)
    max_age_seconds: int | None = Field(default=None, ge=60, le=31_536_000)
    """The longest life (``exp - iat``) of a token that is taken; unset: any."""

    @field_validator("issuer", "jwks_url")
    @classmethod
    def _is_safe(cls, value: str | None) -> str | None:
        if value is not None and value.startswith("http://") and not stays_inside(value):
            raise PydanticCustomError(
                "governance", "keys come by https only, but for hosts of the cluster (*.svc)"
            )
        return value


class AdminMapping(Section):
    """A value of the role claim, and the role at the admin API that it gives."""

    value: str = Field(min_length=1, max_length=256)
    role: AdminRole


class TeamMapping(Section):
    """A value of the team claim, and the team of the spec that it stands for."""

    value: str = Field(min_length=1, max_length=256)
    team: str


class RequiredClaim(Section):
    """What a token must say of its bearer. A name alone stands for ``{claim: name}``."""

    claim: str = Field(pattern=CLAIM_PATTERN)
    value: str | None = Field(default=None, min_length=1, max_length=256)
    """The claim is this text, to the letter, or a list with it; unset: the claim is the boolean
    ``true``. No text, number or list is true."""

    @model_validator(mode="before")
    @classmethod
    def _may_be_a_name(cls, given: object) -> object:
        return {"claim": given} if isinstance(given, str) else given


class OidcIssuer(_Issuer):
    """An identity provider of employees."""

    kind: Literal["oidc"]
    user_claim: str = Field(default="sub", pattern=CLAIM_PATTERN)
    """Compared with ``subject`` of the spec's users."""
    team_claim: str | None = Field(default=None, pattern=CLAIM_PATTERN)
    """A text or a list; for people whom the spec does not name."""
    teams: tuple[TeamMapping, ...] = Field(default=(), strict=False)
    role_claim: str | None = Field(default=None, pattern=CLAIM_PATTERN)
    admins: tuple[AdminMapping, ...] = Field(default=(), strict=False)
    require_claims: tuple[RequiredClaim, ...] = Field(default=(), strict=False)
    """All of them must hold, such as ``email_verified`` or ``{claim: acr, value: mfa}``."""

    @model_validator(mode="after")
    def _claims_are_named(self) -> "OidcIssuer":
        if self.teams and self.team_claim is None:
            raise PydanticCustomError("governance", "teams needs team_claim")
        if self.admins and self.role_claim is None:
            raise PydanticCustomError("governance", "admins needs role_claim")
        return self


class Workload(Section):
    """A service account of the cluster, and the app of the spec that it is."""

    namespace: str = Field(pattern=KUBERNETES_NAME_PATTERN)
    service_account: str = Field(pattern=KUBERNETES_NAME_PATTERN)
    app: str


class KubernetesIssuer(_Issuer):
    """A cluster whose pods call with their service-account tokens."""

    kind: Literal["kubernetes"]
    workloads: tuple[Workload, ...] = Field(min_length=1, strict=False)


Issuer = Annotated[OidcIssuer | KubernetesIssuer, Field(discriminator="kind")]


class Authentication(Section):
    """Identity providers beside virtual keys."""

    issuers: tuple[Issuer, ...] = Field(min_length=1, max_length=32, strict=False)


def authentication_problems(
    authentication: Authentication | None, apps: Sequence[str], teams: Sequence[str]
) -> Iterator[Problem]:
    """What is wrong between issuers and the rest of the spec; ``apps``, ``teams``: its names."""
    if authentication is None:
        return
    section = ("authentication", "issuers")
    for path, text in duplicates(
        "issuers", "issuer", (item.name for item in authentication.issuers)
    ):
        yield ("authentication", *path), text
    seen: set[str] = set()
    for index, item in enumerate(authentication.issuers):
        if item.issuer in seen:
            yield (*section, index, "issuer"), f"issuer {item.issuer!r} is given twice"
        seen.add(item.issuer)
        if isinstance(item, OidcIssuer):
            for place, mapping in enumerate(item.teams):
                if mapping.team not in teams:
                    path = (*section, index, "teams", place, "team")
                    yield path, missing("team", mapping.team, teams)
        else:
            accounts: set[tuple[str, str]] = set()
            for place, workload in enumerate(item.workloads):
                where = (*section, index, "workloads", place)
                account = (workload.namespace, workload.service_account)
                if account in accounts:
                    yield where, f"service account {'/'.join(account)} is given twice"
                accounts.add(account)
                if workload.app not in apps:
                    yield (*where, "app"), missing("app", workload.app, apps)
