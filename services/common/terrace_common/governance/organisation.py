"""The organisation: orgs, teams, users, apps and declared keys, and what they refer to.

Every subject may have policies (by name) and quotas. A call counts against all of its subjects:
its key, and the app, user, team and org above it.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Annotated

from pydantic import Field

from terrace_common.governance.quotas import Quotas, quota_problems
from terrace_common.governance.sections import (
    NAME_PATTERN,
    Problem,
    Section,
    duplicates,
    missing,
    undeclared,
)

KEY_ID_PREFIX = "key_"
"""Ids of minted keys begin so; a declared key's name may not, because both name caps."""

Name = Annotated[str, Field(pattern=NAME_PATTERN)]


class Subject(Section):
    """What every subject has."""

    name: Name
    policies: tuple[str, ...] = Field(default=(), strict=False)
    """Names of policies. Every one of them must allow."""
    quotas: Quotas = ()


class Org(Subject):
    """A company, or a part of one."""


class Team(Subject):
    """Who pays."""

    org: str | None = None


class User(Subject):
    """A person."""

    team: str
    subject: str | None = Field(default=None, min_length=1, max_length=256)
    """How the identity provider names them (``sub`` of a token)."""


class App(Subject):
    """A program. Calls of an app that names its ``user`` count for that user as well."""

    team: str
    user: str | None = None


class Key(Subject):
    """A key that is declared; its secret is minted by ``terrace key create --name NAME``.

    It belongs to exactly one of ``app``, ``user`` and ``team``.
    """

    app: str | None = None
    user: str | None = None
    team: str | None = None
    models: tuple[str, ...] | None = Field(default=None, strict=False)
    """Names or aliases of the catalogue; unset: what its policies allow."""


def organisation_problems(
    *,
    orgs: Sequence[Org],
    teams: Sequence[Team],
    users: Sequence[User],
    apps: Sequence[App],
    keys: Sequence[Key],
    policies: Set[str],
    models: Set[str],
) -> Iterator[Problem]:
    """Duplicates, references that lead nowhere, and owners that contradict each other.

    ``models`` has names and aliases.
    """
    lists: dict[str, Sequence[Subject]] = {
        "orgs": orgs, "teams": teams, "users": users, "apps": apps, "keys": keys,
    }  # fmt: skip
    for section, subjects in lists.items():
        yield from duplicates(section, section[:-1], (subject.name for subject in subjects))
        for index, subject in enumerate(subjects):
            path = (section, index)
            yield from undeclared((*path, "policies"), "policy", subject.policies, policies)
            yield from _twice((*path, "policies"), "policy", subject.policies)
            yield from quota_problems(path, subject.quotas)
    org_names = {org.name for org in orgs}
    team_names = {team.name for team in teams}
    team_of_user = {user.name: user.team for user in users}
    for index, team in enumerate(teams):
        if team.org is not None and team.org not in org_names:
            yield ("teams", index, "org"), missing("org", team.org, org_names)
    yield from _user_problems(users, team_names)
    for index, app in enumerate(apps):
        if app.team not in team_names:
            yield ("apps", index, "team"), missing("team", app.team, team_names)
        if app.user is None:
            continue
        if app.user not in team_of_user:
            yield ("apps", index, "user"), missing("user", app.user, team_of_user)
        elif team_of_user[app.user] != app.team:
            yield (
                ("apps", index, "user"),
                f"user {app.user!r} is of team {team_of_user[app.user]!r}, and this app of team"
                f" {app.team!r}; they must be of one team",
            )
    owners = {
        "app": {app.name for app in apps},
        "user": set(team_of_user),
        "team": team_names,
    }
    for index, key in enumerate(keys):
        yield from _key_problems(index, key, owners, models)


def _user_problems(users: Sequence[User], teams: Set[str]) -> Iterator[Problem]:
    subjects: dict[str, str] = {}
    for index, user in enumerate(users):
        if user.team not in teams:
            yield ("users", index, "team"), missing("team", user.team, teams)
        if user.subject is None:
            continue
        other = subjects.setdefault(user.subject, user.name)
        if other != user.name:
            yield (
                ("users", index, "subject"),
                f"subject {user.subject!r} is already that of user {other!r}; a token must name"
                " one user",
            )


def _key_problems(
    index: int, key: Key, owners: Mapping[str, Set[str]], models: Set[str]
) -> Iterator[Problem]:
    if key.name.startswith(KEY_ID_PREFIX):
        yield (
            ("keys", index, "name"),
            f"{key.name!r} looks like a key id; the name of a declared key must not begin with"
            f" {KEY_ID_PREFIX}",
        )
    given = {kind: name for kind in owners if (name := getattr(key, kind)) is not None}
    if len(given) != 1:
        yield (
            ("keys", index, *list(given)[1:2]),
            f"key {key.name!r} must belong to exactly one of app, user and team; given:"
            f" {', '.join(given) or 'none'}",
        )
    for kind, name in given.items():
        if name not in owners[kind]:
            yield ("keys", index, kind), missing(kind, name, owners[kind])
    if key.models is not None:
        yield from undeclared(("keys", index, "models"), "model", key.models, models)
        yield from _twice(("keys", index, "models"), "model", key.models)


def _twice(path: tuple[str | int, ...], noun: str, names: Sequence[str]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield (*path, index), f"{noun} {name!r} is given twice"
