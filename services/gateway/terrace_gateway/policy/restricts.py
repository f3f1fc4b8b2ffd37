"""Of a change that cannot be in force, what forbids. Pure."""

from dataclasses import replace
from datetime import UTC, datetime

from terrace_gateway.policy.records import Changes, KeyRecord, Secret
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.policy.store import EVERYTHING

LONG_AGO = datetime.min.replace(tzinfo=UTC)


def what_restricts(old: Snapshot, changes: Changes) -> Changes:
    """Kill switches, revocations, secrets that were rotated out and earlier ends.

    A key that was rotated goes by its new secret: it may do no more than before. The epoch stays
    that of ``old``, so that all of ``changes`` is asked for again.
    """
    named = {key.key_id: key for key in changes.keys}
    gone = changes.gone_keys
    secrets = {secret.key_hash: secret for secret in changes.secrets}
    if changes.since == EVERYTHING:  # which names living keys and secrets only
        gone = tuple(key_id for key_id in old.keys if key_id not in named)
        secrets = {
            secret.key_hash: replace(secret, valid_until=LONG_AGO)
            for secret in old.secrets.values()
            if secret.valid_until is not None
        } | secrets
    known = [(old.keys[key_id], key) for key_id, key in named.items() if key_id in old.keys]
    return Changes(
        old.epoch,
        old.epoch,
        old.timeline,
        version=None,
        keys=tuple(_restricted(before, now) for before, now in known),
        gone_keys=gone,
        secrets=tuple(
            _ended(old.secrets[secret.key_hash], secret)
            for secret in secrets.values()
            if secret.key_hash in old.secrets
        ),
        kills=tuple(kill for kill in changes.kills if kill.on),
    )


def _restricted(before: KeyRecord, now: KeyRecord) -> KeyRecord:
    ends = _earlier(before.expires_at, now.expires_at)
    return replace(before, key_hash=now.key_hash, expires_at=ends)


def _ended(before: Secret, now: Secret) -> Secret:
    return replace(before, valid_until=_earlier(before.valid_until, now.valid_until))


def _earlier(one: datetime | None, other: datetime | None) -> datetime | None:
    return min((moment for moment in (one, other) if moment is not None), default=None)
