"""From what a token says of its bearer to the caller that a policy declares. Pure.

A call asks it when it is admitted, and again whenever the policy has changed before it is sent.
"""

import hashlib
from dataclasses import replace
from datetime import datetime

import structlog

from terrace_common.governance.authentication import KubernetesIssuer, OidcIssuer, RequiredClaim
from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.authentication.token import Token
from terrace_gateway.authentication.tokens import checked_again, claim, claim_texts
from terrace_gateway.authentication.workload import app_of, service_account
from terrace_gateway.calls.ports import Principal
from terrace_gateway.edge.errors import INVALID_API_KEY, POLICY_DENIED, ApiError
from terrace_gateway.policy.snapshot import Snapshot

log = structlog.get_logger()


class NotDeclaredError(ApiError):
    """The token is good, and the policy has nobody for it (403)."""

    def __init__(self, message: str) -> None:
        super().__init__(POLICY_DENIED, message)


def bearer_of(token: Token, snapshot: Snapshot, *, now: datetime) -> Principal:
    """The caller with ``token`` by the issuers, mappings and subjects of ``snapshot``.

    ``now`` is the database's time. Raises ``NotDeclaredError``; ``ApiError`` as ``checked_again``,
    and 401 where the issuer asks for claims that the token has not.
    """
    token = checked_again(token, snapshot.governance.authentication, now=now)
    try:
        if isinstance(token.issuer, KubernetesIssuer):
            found = _workload(token, token.issuer, snapshot)
        else:
            found = _employee(token, token.issuer, snapshot)
    except UnknownSubjectError as error:
        log.warning("caller_orphaned", error=str(error))
        raise NotDeclaredError("what this token's bearer belongs to is not declared") from None
    return replace(found, expires_at=token.expires_at, token=token)


def employee_subject(token: Token, issuer: OidcIssuer) -> str:
    """What the spec knows the bearer by. Raises ``ApiError`` (401)."""
    for required in issuer.require_claims:
        if not _holds(token, required):
            wanted = "true" if required.value is None else repr(required.value)
            raise ApiError(
                INVALID_API_KEY, f"the token is refused: claim {required.claim} is not {wanted}"
            )
    subject = claim(token.claims, issuer.user_claim)
    if not isinstance(subject, str) or not 0 < len(subject) <= 255:
        raise ApiError(INVALID_API_KEY, f"the token is refused: claim {issuer.user_claim} is none")
    return subject


def person_id(issuer: OidcIssuer, subject: str) -> str:
    """How the ledger and kill switches name a person of ``issuer``, whatever the policy says of
    them: the same for each of their tokens."""
    return _stable_id("oidc", issuer.issuer, subject)


def _holds(token: Token, required: RequiredClaim) -> bool:
    if required.value is None:
        return claim(token.claims, required.claim) is True
    return required.value in claim_texts(token.claims, required.claim)


def _employee(token: Token, issuer: OidcIssuer, snapshot: Snapshot) -> Principal:
    """A user of the spec with this subject, else a member of the first team that is mapped."""
    subject = employee_subject(token, issuer)
    key_id = person_id(issuer, subject)
    user = _user_of(snapshot, issuer=issuer.name, subject=subject)
    if user is not None:
        name, team = user
        found = snapshot.caller_without_key(key_id=key_id, team=team, user=name)
        return replace(found, method="oidc")
    groups = set(claim_texts(token.claims, issuer.team_claim))
    declared = {team.name for team in snapshot.governance.teams}
    for mapping in issuer.teams:
        if mapping.value in groups and mapping.team in declared:
            found = snapshot.caller_without_key(key_id=key_id, team=mapping.team)
            return replace(found, method="oidc")
    raise NotDeclaredError("nobody with this token's subject or teams is declared")


def _workload(token: Token, issuer: KubernetesIssuer, snapshot: Snapshot) -> Principal:
    account = service_account(token)
    app = app_of(account, issuer)
    if app is None:
        raise NotDeclaredError(f"service account {account} is no declared workload")
    for declared in snapshot.governance.apps:
        if declared.name == app:
            key_id = _stable_id("workload", issuer.issuer, str(account))
            found = snapshot.caller_without_key(key_id=key_id, team=declared.team, app=app)
            return replace(found, method="workload")
    raise NotDeclaredError(f"app {app!r} is not declared")


def _user_of(snapshot: Snapshot, *, issuer: str, subject: str) -> tuple[str, str] | None:
    """Name and team of the user with this subject.

    ``subject`` of the spec is ``<issuer's name>:<subject>``, or the subject alone while one issuer
    of employees is declared: two may give the same subject to different people.
    """
    authentication = snapshot.governance.authentication
    issuers = () if authentication is None else authentication.issuers
    alone = sum(isinstance(one, OidcIssuer) for one in issuers) == 1
    names = [f"{issuer}:{subject}"]
    if alone and subject.partition(":")[0] != issuer:
        names.append(subject)
    user = snapshot.compiled.user_with_subject(*names)
    return None if user is None else (user.name, user.team)


def _stable_id(kind: str, issuer: str, subject: str) -> str:
    """How the ledger names a caller without a key: the same for each of its tokens."""
    digest = hashlib.sha256(f"{issuer}\0{subject}".encode("utf-8", "surrogatepass"))
    return f"{kind}:{digest.hexdigest()[:24]}"
