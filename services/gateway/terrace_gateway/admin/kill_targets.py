"""What a kill switch is told to stop, as kind and names."""

import re
from typing import cast

from terrace_common.governance import Governance
from terrace_common.governance.authentication import OidcIssuer
from terrace_gateway.admin.known_names import unknown_name
from terrace_gateway.admin.spec_in_force import Names
from terrace_gateway.authentication.bearer import person_id
from terrace_gateway.policy.records import KillKind
from terrace_gateway.surfaces.json_body import invalid

KINDS = ("key", "team", "org", "user", "app", "model", "provider", "all")
SUBJECT = "subject"
"""``subject:ISSUER:SUBJECT``: one person by their tokens, declared or not. Switched as the key that
the ledger names their calls by, so that no subject is kept."""
TOKEN_KEY = re.compile(r"(oidc|workload):[0-9a-f]{24}")


def resolve(names: Names, text: str) -> tuple[KillKind, list[str]]:
    """Kind and names of a target of the spec: a misspelt one would stop nothing.

    Raises ``ApiError`` that lists what would have been right.
    """
    spec = names.newest
    kind, name = split_target(text, spec)
    if kind == "key" and TOKEN_KEY.fullmatch(name):  # a subject's
        return kind, [name]
    if kind == "model":
        switches = names.switches(name)
        if not switches:
            raise unknown_name(kind, name, [model.name for model in spec.models], "target")
        return kind, switches
    known = _declared(spec, kind)
    if name in known or (names.stuck and names.here and name in _declared(names.here, kind)):
        return kind, [name]
    raise unknown_name(kind, name, known, "target")


def _declared(spec: Governance, kind: KillKind) -> list[str]:
    subjects = {
        "provider": spec.providers, "org": spec.orgs, "team": spec.teams,
        "user": spec.users, "app": spec.apps, "key": spec.keys,
    }[kind]  # fmt: skip
    return [subject.name for subject in subjects]


def split_target(text: str, spec: Governance | None) -> tuple[KillKind, str]:
    """``team:search`` as ``("team", "search")``, ``all`` as ``("all", "")``, a subject as the key
    that its person has, which needs ``spec``.

    Raises ``ApiError``.
    """
    kind, separator, name = text.partition(":")
    if kind == "all" and not separator:
        return "all", ""
    if kind == SUBJECT and name and spec is not None:
        return "key", _person(name, spec)
    if kind not in KINDS or kind == "all" or not name:
        shapes = ", ".join(f"{kind}:NAME" for kind in KINDS[:-1])
        raise invalid(f"target must be one of {shapes}, subject:ISSUER:SUBJECT, or all", "target")
    return cast("KillKind", kind), name


def _person(name: str, spec: Governance) -> str:
    """By ``<issuer's name>:<subject>``, as users of the spec have it. Whether there is such a
    subject only the issuer knows."""
    of, _, subject = name.partition(":")
    authentication = spec.authentication
    declared = () if authentication is None else authentication.issuers
    issuers = {one.name: one for one in declared if isinstance(one, OidcIssuer)}
    issuer = issuers.get(of)
    if issuer is None:
        raise unknown_name("oidc issuer", of, list(issuers), "target")
    if not subject:
        raise invalid("target must be subject:ISSUER:SUBJECT", "target")
    return person_id(issuer, subject)
