"""The policy in force, as one immutable value. A change makes a new one that shares what it can.

What a caller may do is worked out at its first call and remembered, so that 10,000 keys cost
nothing at a reload and a call costs two look-ups.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from terrace_common.governance import Governance
from terrace_common.governance.compile import CompiledGovernance
from terrace_common.prices import PriceBook
from terrace_gateway.calls.ports import Caller, Cap, Principal
from terrace_gateway.policy.records import (
    CapPlace,
    CapRow,
    Changes,
    KeyRecord,
    KillKind,
    KillRow,
    Secret,
)

FEATURES = frozenset({"tools", "images", "streaming", "json_schema", "reasoning", "embeddings"})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The governance version in force, keys, caps and kill switches at one epoch."""

    version: int
    digest: str
    text: str
    epoch: int
    timeline: int
    """Of the database that it was read from."""
    compiled: CompiledGovernance
    keys: Mapping[str, KeyRecord]
    secrets: Mapping[bytes, Secret]
    caps: Mapping[CapPlace, tuple[Cap, ...]]
    kills: frozenset[tuple[KillKind, str]] = frozenset()
    price_book: PriceBook | None = None
    """``None``: every model has its own price."""
    undeployed: frozenset[str] = frozenset()
    """Models that this process's translator does not serve as the version declares them."""
    worked_out: dict[str, Principal] = field(
        default_factory=dict[str, Principal], repr=False, compare=False
    )
    """Callers by key id, as ``principal`` finds them; the only thing here that grows."""
    stopped: frozenset[tuple[KillKind, str]] = field(init=False, repr=False, compare=False)
    """What ``kills`` stop by this spec. A model by every name that it has: a switch that was turned
    on before it was renamed holds, and one after it finds calls that began before."""
    killed_models: frozenset[str] = field(init=False, repr=False, compare=False)
    """Names of models that a kill switch stops, aliases too."""
    killed_providers: frozenset[str] = field(init=False, repr=False, compare=False)
    """Providers that a kill switch stops."""

    def __post_init__(self) -> None:
        stopped = set(self.kills)
        for kind, target in self.kills:
            model = self.compiled.spec.find_model(target) if kind == "model" else None
            if model is not None:
                stopped.update(("model", name) for name in (model.name, *model.aliases))
        models = frozenset(name for kind, name in stopped if kind == "model")
        providers = frozenset(name for kind, name in stopped if kind == "provider")
        object.__setattr__(self, "stopped", frozenset(stopped))
        object.__setattr__(self, "killed_models", models)
        object.__setattr__(self, "killed_providers", providers)

    @property
    def governance(self) -> Governance:
        """The spec of the version in force."""
        return self.compiled.spec

    @property
    def price_version(self) -> str:
        """Of the catalogue's prices."""
        return self.compiled.spec.price_version

    def find_secret(self, key_hash: bytes) -> Secret | None:
        """The secret with this keyed hash, valid or not yet past; ``None``: there is none."""
        return self.secrets.get(key_hash)

    def principal(self, key: KeyRecord) -> Principal:
        """The caller with ``key``, a key of this snapshot.

        Raises ``UnknownSubjectError`` for a key whose owner the spec no longer declares.
        """
        known = self.worked_out.get(key.key_id)
        if known is None:
            known = self.worked_out[key.key_id] = self._make_principal(key)
        return known

    def caller_without_key(
        self, *, key_id: str, team: str, user: str | None = None, app: str | None = None
    ) -> Principal:
        """A caller that another authenticator knows. ``key_id`` is what the ledger calls it.

        Raises ``UnknownSubjectError``.
        """
        found = self.compiled.standing(team=team, user=user, app=app)
        caller = Caller(key_id, found.team, org=found.org, user=found.user, app=found.app)
        return Principal(caller, found.policy, self._caps_at(found.scopes), audit=found.audit)

    def caps_of(self, scope: str, scope_id: str) -> tuple[Cap, ...]:
        """Caps of one scope; for a model or provider those that come with a candidate. A model has
        those of the upstream quota that it draws on as well."""
        found = self.caps.get((scope, scope_id), ())
        if scope == "model":
            for pool in self.compiled.upstream_pools.get(scope_id, ()):
                found += self.caps.get((scope, pool), ())
        return found

    def killed(
        self,
        caller: Caller | None,
        *,
        model: str | None = None,
        provider: str | None = None,
        spare_all: bool = False,
    ) -> str | None:
        """Which kill switch stops a call, in words for the client; ``None``: none does.
        ``spare_all``: not by the one of all calls."""
        if not self.kills:
            return None
        places: list[tuple[KillKind, str | None]] = [] if spare_all else [("all", "")]
        if caller is not None:
            places += switches_of(caller)
        places.append(("model", model))
        places.append(("provider", provider))
        for kind, target in places:
            if target is not None and (kind, target) in self.stopped:
                what = "every call" if kind == "all" else f"{kind} {target!r}"
                return f"{what} is stopped by an administrator"
        return None

    def _make_principal(self, key: KeyRecord) -> Principal:
        found = self.compiled.standing(
            team=key.team, user=key.user, app=key.app, key=key.declared, policies=key.policies,
            models=key.models,
        )  # fmt: skip
        policy = found.policy
        if key.features is not None:
            denied = policy.denied_features | (FEATURES - key.features)
            policy = replace(policy, denied_features=denied)
        caller = Caller(
            key.key_id, found.team, key_name=key.declared or key.name, org=found.org,
            user=found.user, app=found.app,
        )  # fmt: skip
        places = [*found.scopes, ("key", key.key_id)]
        return Principal(
            caller, policy, self._caps_at(places), expires_at=key.expires_at, audit=found.audit,
            surfaces=key.surfaces,
        )  # fmt: skip

    def _caps_at(self, places: Iterable[CapPlace]) -> tuple[Cap, ...]:
        return tuple(cap for place in dict.fromkeys(places) for cap in self.caps.get(place, ()))


def switches_of(caller: Caller) -> list[tuple[KillKind, str | None]]:
    """Kill switches that stop a caller, but for the one of all calls."""
    return [
        ("org", caller.org), ("team", caller.team), ("user", caller.user), ("app", caller.app),
        ("key", caller.key_id), ("key", caller.key_name),
    ]  # fmt: skip


def first_snapshot(
    changes: Changes, compiled: CompiledGovernance, undeployed: frozenset[str]
) -> Snapshot:
    """From everything that the tables have. ``changes.version`` is set."""
    if changes.version is None or changes.since >= 0:
        raise ValueError("a first snapshot needs all rows and a version")
    empty = Snapshot(
        version=0, digest="", text="", epoch=-1, timeline=0, compiled=compiled, keys={},
        secrets={}, caps={},
    )  # fmt: skip
    return next_snapshot(empty, changes, compiled, undeployed)


def next_snapshot(
    old: Snapshot, changes: Changes, compiled: CompiledGovernance, undeployed: frozenset[str]
) -> Snapshot:
    """``old`` with ``changes``. ``compiled`` is that of ``changes.version``, or ``old``'s."""
    keys, secrets = dict(old.keys), dict(old.secrets)
    touched = {*changes.gone_keys, *(key.key_id for key in changes.keys)}
    for key_id in touched:
        gone = keys.pop(key_id, None)
        if gone is not None:
            secrets.pop(gone.key_hash, None)
    if changes.gone_keys:
        gone_keys = set(changes.gone_keys)
        secrets = {at: one for at, one in secrets.items() if one.key_id not in gone_keys}
    for key in changes.keys:
        keys[key.key_id] = key
        secrets[key.key_hash] = Secret(key.key_hash, key.key_id)
    for secret in changes.secrets:
        if secret.key_id in keys and keys[secret.key_id].key_hash != secret.key_hash:
            secrets[secret.key_hash] = secret
    caps, moved = _with_caps(old.caps, changes.caps)
    version = changes.version
    return Snapshot(
        version=old.version if version is None else version.version,
        digest=old.digest if version is None else version.digest,
        text=old.text if version is None else version.text,
        epoch=changes.epoch,
        timeline=changes.timeline,
        compiled=compiled,
        keys=keys,
        secrets=secrets,
        caps=caps,
        kills=_with_kills(old.kills, changes.kills),
        price_book=(old.price_book if changes.price_book is None else changes.price_book.book),
        undeployed=undeployed,
        worked_out=_still_true(old, compiled, touched, moved),
    )


def _with_caps(
    old: Mapping[CapPlace, tuple[Cap, ...]], rows: Iterable[CapRow]
) -> tuple[Mapping[CapPlace, tuple[Cap, ...]], set[CapPlace]]:
    by_place: dict[CapPlace, dict[int, Cap]] = {}
    for row in rows:
        place = (row.cap.scope, row.cap.scope_id)
        here = by_place.setdefault(place, {cap.cap_id: cap for cap in old.get(place, ())})
        here.pop(row.cap.cap_id, None)
        if row.live:
            here[row.cap.cap_id] = row.cap
    if not by_place:
        return old, set()
    caps = dict(old)
    for place, here in by_place.items():
        caps[place] = tuple(here[cap_id] for cap_id in sorted(here))
        if not here:
            del caps[place]
    return caps, set(by_place)


def _with_kills(
    old: frozenset[tuple[KillKind, str]], rows: Iterable[KillRow]
) -> frozenset[tuple[KillKind, str]]:
    kills = set(old)
    for row in rows:
        (kills.add if row.on else kills.discard)((row.kind, row.target))
    return frozenset(kills)


def _still_true(
    old: Snapshot, compiled: CompiledGovernance, touched: set[str], moved: set[CapPlace]
) -> dict[str, Principal]:
    shared = any(scope != "key" or scope_id not in old.keys for scope, scope_id in moved)
    if compiled is not old.compiled or shared:
        return {}
    stale = touched | {scope_id for _, scope_id in moved}
    return {key_id: known for key_id, known in old.worked_out.items() if key_id not in stale}
