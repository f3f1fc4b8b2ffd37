"""What a change of issuers, subjects and mappings does to kill switches that stop bearers of
tokens."""

from collections.abc import Iterable, Iterator, Mapping

from terrace_common.governance.authentication import KubernetesIssuer, OidcIssuer
from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.kill_leavers import Mover, Place, places, shown
from terrace_common.governance.plan import Finding, LiveKill
from terrace_common.governance.spec import Governance

AnyIssuer = OidcIssuer | KubernetesIssuer
_USER = "the tokens of user"
_AGAIN = {
    "oidc": "kill subject:ISSUER:SUBJECT, as it is called then",
    "workload": "kill the app, or key:workload:ID, as the ledger has it then",
}
"""How to stop the same one by the new identity, per kind of id."""


def lost_ids(old: Governance, new: Governance, kills: Iterable[LiveKill]) -> Iterator[Finding]:
    """Switches of persons and pods by an id that nobody would have any more.

    An id is a digest of the issuer's URL and of what its tokens say: of whose issuer one is cannot
    be told, so each change of an issuer counts for each switch of that kind.
    """
    on = sorted(kill.target for kill in kills if kill.kind == "key")
    for kind, again in _AGAIN.items():
        switches = [f"key:{target}" for target in on if target.startswith(f"{kind}:")]
        left = _identities(new, kind)
        gone = [repr(name) for what, name in _identities(old, kind).items() if what not in left]
        if switches and gone:
            message = (
                f"kill switch {shown(switches)} would stop nobody of issuer {shown(gone)} any more:"
                " by another URL, user_claim or kind everybody there has another id, and nobody by"
                " an issuer that is gone. If it stops somebody there, apply with --allow"
                f" kill-switch-lost, {again}, and lift this one"
            )
            yield Finding("kill-switch-lost", message, line=None, blocking=True)


def moved_bearers(old: CompiledGovernance, new: CompiledGovernance) -> Iterator[Mover]:
    """Those whose tokens an issuer still gives, and who would be another user's, app's or team's,
    or nobody's. Groups are told by their mapping alone: which of them a person is in is not known.
    """
    known = {text for one in _issuers(old.spec) for text in (one.issuer, one.name)}
    for was in _issuers(old.spec):
        same_kind = [one for one in _issuers(new.spec) if one.kind == was.kind]
        same_url = [one for one in same_kind if one.issuer == was.issuer]
        same_name = [one for one in same_kind if one.name == was.name]
        in_its_place = [one for one in same_kind if known.isdisjoint((one.issuer, one.name))]
        for now in (*same_url, *same_name, *in_its_place)[:1]:
            yield from _moved(old, new, was, now)


def _moved(
    old: CompiledGovernance, new: CompiledGovernance, was: AnyIssuer, now: AnyIssuer
) -> Iterator[Mover]:
    renamed = isinstance(was, OidcIssuer) and isinstance(now, OidcIssuer) and (
        was.user_claim != now.user_claim
    )  # fmt: skip
    others = isinstance(now, OidcIssuer) and bool(now.teams or now.admins)
    before, after = _bearers(old.spec, was), _bearers(new.spec, now)
    owners = set(after.values())
    for bearer, owner in before.items():
        kind, value = bearer
        then = after.get(bearer)
        if kind == _USER and renamed:  # a user whose subject was written anew is the same one
            then = owner if then is None and owner in owners else None
        if then == owner:
            continue
        own = owner if kind == _USER else None
        stops = places(old, *owner)
        if then is None and not others:  # refused, as long as nobody maps a group
            stops = () if own is None else (own,)
        yield Mover(
            kind,
            owner[1] if kind == _USER else value,
            stops,
            () if then is None else places(new, *then),
            own,
            f" of issuer {now.name!r} any more: they would not be that user's. Let the user's"
            f" subject be '{now.name}:SUBJECT', with SUBJECT as the tokens have it then, or apply"
            f" with --allow kill-switch-lost and kill subject:{now.name}:SUBJECT",
        )


def _bearers(spec: Governance, issuer: AnyIssuer) -> Mapping[tuple[str, str], Place]:
    """Kind and value of what a token says -> whose it is."""
    if isinstance(issuer, KubernetesIssuer):
        return {
            ("workload", f"{one.namespace}/{one.service_account}"): ("app", one.app)
            for one in issuer.workloads
        }
    found: dict[tuple[str, str], Place] = {}
    for mapping in issuer.teams:
        found.setdefault(("group", mapping.value), ("team", mapping.team))
    alone = sum(isinstance(one, OidcIssuer) for one in _issuers(spec)) == 1
    for user in spec.users:
        of, _, own = (user.subject or "").partition(":")
        if of != issuer.name:
            own = (user.subject or "") if alone else ""
        if own:
            found.setdefault((_USER, own), ("user", user.name))
    return found


def _identities(spec: Governance, kind: str) -> Mapping[tuple[str, ...], str]:
    """What ids of a kind are made of, without who bears them -> the issuer's name."""
    return {
        (one.issuer, one.user_claim if isinstance(one, OidcIssuer) else ""): one.name
        for one in _issuers(spec)
        if isinstance(one, OidcIssuer) is (kind == "oidc")
    }


def _issuers(spec: Governance) -> tuple[AnyIssuer, ...]:
    return () if spec.authentication is None else spec.authentication.issuers
