"""From the spec to what holds for one caller: the walk org, team, user, app, key. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from terrace_common.governance.compiled import DeclaredCap, EffectivePolicy, Scope
from terrace_common.governance.merging import Restriction, effective, restriction_of
from terrace_common.governance.organisation import Subject, User
from terrace_common.governance.policies import resolve_extends
from terrace_common.governance.quotas import Quota
from terrace_common.governance.spec import Governance
from terrace_common.governance.upstream_pools import pool_names

S = TypeVar("S", bound=Subject)


class UnknownSubjectError(LookupError):
    """A caller names somebody whom the spec does not declare: its key is orphaned."""

    def __init__(self, kind: Scope, name: str) -> None:
        self.kind: Scope = kind
        self.name = name
        super().__init__(f"{kind} {name!r} is not declared")


@dataclass(frozen=True, slots=True)
class Standing:
    """Who a caller is in the organisation, and what holds for it."""

    team: str
    org: str | None
    user: str | None
    app: str | None
    key: str | None
    """The name of a declared key."""
    policy: EffectivePolicy
    """The policies of mode ``block``."""
    audit: EffectivePolicy | None
    """Those of mode ``audit``, merged apart; ``None``: there are none."""
    scopes: tuple[tuple[Scope, str], ...]
    """From the org to the key, each with the name that its caps have as ``scope_id``."""


class CompiledGovernance:
    """The spec, compiled. Nothing of it changes; merged policies are remembered."""

    def __init__(self, spec: Governance) -> None:
        self.spec = spec
        self.caps: tuple[DeclaredCap, ...] = compile_caps(spec)
        """Of all subjects, models and providers, sorted."""
        self.upstream_pools: Mapping[str, tuple[str, ...]] = pool_names(spec)
        """Name of a model -> pools of upstream quota that it draws on."""
        self._caps_of: dict[tuple[Scope, str], tuple[DeclaredCap, ...]] = _by_scope(self.caps)
        self._orgs = {org.name: org for org in spec.orgs}
        self._teams = {team.name: team for team in spec.teams}
        self._users = {user.name: user for user in spec.users}
        self._by_subject: dict[str, tuple[int, User]] = {}
        for place, user in enumerate(spec.users):
            if user.subject is not None:
                self._by_subject.setdefault(user.subject, (place, user))
        self._apps = {app.name: app for app in spec.apps}
        self._keys = {key.name: key for key in spec.keys}
        self._guardrail_order = spec.guardrail_names
        resolved = resolve_extends(spec.policies)
        self._modes = {name: policy.mode for name, policy in resolved.items()}
        self._restrictions = {
            name: restriction_of(
                policy.model_copy(update={"name": name}),
                model_names=self.model_names,
                all_models=frozenset(model.name for model in spec.models),
                all_providers=frozenset(provider.name for provider in spec.providers),
            )
            for name, policy in resolved.items()
        }
        self._merged: dict[
            tuple[frozenset[str], frozenset[str] | None],
            tuple[EffectivePolicy, EffectivePolicy | None],
        ] = {}

    def standing(
        self,
        *,
        team: str,
        user: str | None = None,
        app: str | None = None,
        key: str | None = None,
        policies: Sequence[str] = (),
        models: Iterable[str] | None = None,
    ) -> Standing:
        """What holds for a caller.

        ``key`` is the name of a declared key. What the spec says of a key, an app or a user goes
        before what is passed: a user who moved to another team counts for that team. ``policies``
        and ``models`` are of the caller itself, in addition; names of models that the spec no
        longer has allow nothing. A spec without teams accepts any team.

        Raises ``UnknownSubjectError``.
        """
        applied: list[Subject] = []
        allowed = None if models is None else self.model_names(models)
        if key is not None:
            declared = _find("key", key, self._keys)
            app, user = declared.app, declared.user
            team = declared.team or team
            if declared.models is not None:
                named = self.model_names(declared.models)
                allowed = named if allowed is None else allowed & named
            applied.append(declared)
        if app is not None:
            found_app = _find("app", app, self._apps)
            team, user = found_app.team, found_app.user or user
            applied.append(found_app)
        if user is not None:
            found_user = _find("user", user, self._users)
            team = found_user.team
            applied.append(found_user)
        org = None
        if self._teams:
            found_team = _find("team", team, self._teams)
            org = found_team.org
            applied.append(found_team)
        if org is not None:
            applied.append(self._orgs[org])
        names = frozenset(policies).union(*(subject.policies for subject in applied))
        policy, audit = self.merged(names, allowed)
        walk: tuple[tuple[Scope, str | None], ...] = (
            ("org", org), ("team", team), ("user", user), ("app", app), ("key", key),
        )  # fmt: skip
        return Standing(
            team=team,
            org=org,
            user=user,
            app=app,
            key=key,
            policy=policy,
            audit=audit,
            scopes=tuple((scope, name) for scope, name in walk if name is not None),
        )

    def merged(
        self, policies: Iterable[str], models: frozenset[str] | None = None
    ) -> tuple[EffectivePolicy, EffectivePolicy | None]:
        """Policies by name, merged: those of mode ``block`` (with ``models``, names of the
        catalogue, as one more), and those of mode ``audit``.

        A name that is not declared denies everything: what it said is not known any more.
        """
        wanted = (frozenset(policies), models)
        if (known := self._merged.get(wanted)) is not None:
            return known
        nothing = Restriction(models=frozenset())
        blocking = [
            self._restrictions.get(name, nothing)
            for name in wanted[0]
            if self._modes.get(name, "block") == "block"
        ]
        auditing = [
            self._restrictions[name] for name in wanted[0] if self._modes.get(name) == "audit"
        ]
        order = self._guardrail_order
        made = (
            effective([*blocking, Restriction(models=models)], mode="block", guardrail_order=order),
            effective(auditing, mode="audit", guardrail_order=order) if auditing else None,
        )
        self._merged[wanted] = made
        return made

    def user_with_subject(self, *subjects: str) -> User | None:
        """The first declared user who has one of ``subjects``; ``None``: nobody has."""
        found = [self._by_subject[one] for one in subjects if one in self._by_subject]
        return min(found, key=itemgetter(0))[1] if found else None

    def caps_of(self, scopes: Iterable[tuple[Scope, str]]) -> tuple[DeclaredCap, ...]:
        """The declared caps of some scopes, in their order."""
        return tuple(cap for scope in scopes for cap in self._caps_of.get(scope, ()))

    def model_names(self, names: Iterable[str]) -> frozenset[str]:
        """Names of the catalogue for names and aliases; others are left out."""
        found = (self.spec.find_model(name) for name in names)
        return frozenset(model.name for model in found if model is not None)


def compile_governance(spec: Governance) -> CompiledGovernance:
    """Compile a spec. Costs milliseconds; do it once per version."""
    return CompiledGovernance(spec)


def compile_caps(spec: Governance) -> tuple[DeclaredCap, ...]:
    """Every cap of the spec, sorted by what makes it itself."""
    holders: tuple[tuple[Scope, Iterable[tuple[str, Sequence[Quota]]]], ...] = (
        ("org", ((org.name, org.quotas) for org in spec.orgs)),
        ("team", ((team.name, team.quotas) for team in spec.teams)),
        ("user", ((user.name, user.quotas) for user in spec.users)),
        ("app", ((app.name, app.quotas) for app in spec.apps)),
        ("key", ((key.name, key.quotas) for key in spec.keys)),
        ("model", ((model.name, model.quotas) for model in spec.models)),
        ("provider", ((provider.name, provider.quotas) for provider in spec.providers)),
    )
    caps = (
        quota.declared(scope, name)
        for scope, subjects in holders
        for name, quotas in subjects
        for quota in quotas
    )
    return tuple(sorted(caps, key=_order))


def _order(cap: DeclaredCap) -> tuple[str, ...]:
    window = cap.window
    return (
        cap.scope,
        cap.scope_id,
        cap.dimension,
        window.kind,
        f"{window.seconds:012d}",
        window.unit or "",
        window.zone,
    )


def _by_scope(
    caps: Iterable[DeclaredCap],
) -> dict[tuple[Scope, str], tuple[DeclaredCap, ...]]:
    found: defaultdict[tuple[Scope, str], list[DeclaredCap]] = defaultdict(list)
    for cap in caps:
        found[(cap.scope, cap.scope_id)].append(cap)
    return {scope: tuple(of_scope) for scope, of_scope in found.items()}


def _find(kind: Scope, name: str, declared: Mapping[str, S]) -> S:
    try:
        return declared[name]
    except KeyError:
        raise UnknownSubjectError(kind, name) from None
