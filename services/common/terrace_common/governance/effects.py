"""What a change of the spec does to live keys, running budgets and prices: the plan's findings."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from terrace_common.governance.compile import (
    CompiledGovernance,
    Standing,
    UnknownSubjectError,
    compile_governance,
)
from terrace_common.governance.compiled import DeclaredCap, EffectivePolicy, Window
from terrace_common.governance.differences import differences
from terrace_common.governance.kill_effects import KillEffects
from terrace_common.governance.kill_leavers import Mover
from terrace_common.governance.plan import (
    BLOCKING,
    CapSpend,
    Code,
    Facts,
    Finding,
    LiveKey,
    LiveKill,
    Plan,
)
from terrace_common.governance.sections import listed
from terrace_common.governance.spec import Governance
from terrace_common.yaml_lines import DocumentPath, read_lined_yaml

SHOWN_KEYS = 5
MICRO_USD_PER_USD = 1_000_000
SECTIONS = {
    "org": "orgs", "team": "teams", "user": "users", "app": "apps", "key": "keys",
    "model": "models", "provider": "providers",
}  # fmt: skip


def plan_change(
    old: Governance | None, new: Governance, facts: Facts, *, new_text: str | None = None
) -> Plan:
    """The plan for replacing ``old`` (``None``: there is none yet) by ``new``.

    ``new_text`` is what ``new`` was read from; with it findings name lines.
    """
    before = None if old is None else compile_governance(old)
    return PreparedChange(before, compile_governance(new), new_text=new_text).plan(facts)


class PreparedChange:
    """``new`` in the place of ``old``, for plans on several states of the running system.

    Takes seconds to make for 10,000 keys. The first plan takes about one more; the next ones, with
    facts that are mostly the same, a small part of that.
    """

    def __init__(
        self,
        old: CompiledGovernance | None,
        new: CompiledGovernance,
        *,
        new_text: str | None = None,
    ) -> None:
        self._changes = differences(None if old is None else old.spec, new.spec)
        self._effects = _Effects(old, new, new_text)
        self._always = (*self._effects.on_catalogue(), *self._effects.on_declarations())

    def plan(self, facts: Facts) -> Plan:
        """What the change does to these keys and budgets."""
        found = [
            *self._effects.on_keys(facts.keys),
            *self._effects.on_caps(facts.spend),
            *self._effects.on_kills(facts.kills, facts.keys),
            *self._always,
        ]
        found.sort(key=lambda finding: (not finding.blocking, finding.code, finding.message))
        return Plan(self._changes, tuple(found))


_KeyEffect = tuple[Code, tuple[str, ...]]
"""What becomes of a key, and the names in it: keys with the same are told together."""


class _Effects:
    def __init__(
        self, old: CompiledGovernance | None, new: CompiledGovernance, text: str | None
    ) -> None:
        self._old, self._new = old, new
        self._document = None if text is None else read_lined_yaml(text)
        self._reachable: dict[tuple[bool, EffectivePolicy], frozenset[str]] = {}
        self._on_key: dict[LiveKey, tuple[_KeyEffect, ...]] = {}
        self._moved: dict[LiveKey, Mover] = {}
        self._kills = None if old is None else KillEffects(old, new)
        self._caps_before = {} if old is None else {cap.identity: cap for cap in old.caps}
        self._caps_after = {cap.identity: cap for cap in new.caps}
        self._places = {
            (section, subject.name): index
            for section in SECTIONS.values()
            for index, subject in enumerate(getattr(new.spec, section))
        }

    def on_keys(self, keys: Sequence[LiveKey]) -> Iterator[Finding]:
        """Keys that would be refused, lose models or change their team."""
        found: defaultdict[_KeyEffect, list[str]] = defaultdict(list)
        for key in sorted(keys, key=lambda key: key.key_id):
            effects = self._on_key.get(key)
            if effects is None:
                effects = self._on_key.setdefault(key, tuple(self._effects_on(key)))
            for effect in effects:
                found[effect].append(key.key_id)
        for (code, names), ids in found.items():
            if code == "key-orphaned":
                kind, name = names
                message = f"{kind} {name!r} is not declared; {_ids(ids, 'would be refused')}"
                yield self._finding(code, message, (SECTIONS[kind],))
            elif code == "key-moves-team":
                one, other = names
                moves = f"moves from team {one!r} to {other!r}"
                yield self._finding(code, _ids(ids, moves), None)
            else:
                loses = code == "key-loses-models"
                verb = "cannot call" if loses else "can call nothing any more, not"
                yield self._finding(code, _ids(ids, f"{verb} {listed(names)}"), None)

    def _effects_on(self, key: LiveKey) -> Iterator[_KeyEffect]:
        before = None if self._old is None else _standing(self._old, key)
        after = _standing(self._new, key)
        if isinstance(after, UnknownSubjectError):
            if not isinstance(before, UnknownSubjectError):  # else it is refused already
                yield "key-orphaned", (after.kind, after.name)
            return
        if not isinstance(before, Standing):
            return
        if before.scopes != after.scopes:
            own = ("key", key.key_id)
            self._moved[key] = Mover(
                "live key", key.key_id, (*before.scopes, own), (*after.scopes, own)
            )
        if before.team != after.team:
            yield "key-moves-team", (before.team, after.team)
        had, has = self._models(before, new=False), self._models(after, new=True)
        if gone := tuple(sorted(had - has)):
            yield "key-loses-models" if has else "key-loses-all-models", gone

    def on_caps(self, spend: Sequence[CapSpend]) -> Iterator[Finding]:
        """Caps below what is spent, with another window, or gone."""
        used = {(s.scope, s.scope_id, s.dimension, s.window): s for s in spend}
        before, after = self._caps_before, self._caps_after
        for identity, cap in after.items():
            was, counted = before.get(identity), used.get(identity)
            if counted is not None and counted.runtime is not None:
                yield from self._on_runtime_cap(cap, counted.runtime)
            # A cap that is as strict as before blocks no unrelated change, whatever it has counted.
            if counted is None or (was is not None and not _stricter(was, cap)):
                continue
            total = counted.settled + counted.outstanding
            if total > cap.amount:
                yield self._finding(
                    "cap-below-spend",
                    f"{_cap(cap)} would be {_amount(cap, cap.amount)}, and"
                    f" {_amount(cap, counted.settled)} are settled and"
                    f" {_amount(cap, counted.outstanding)} reserved",
                    self._path_of(cap),
                    blocking=cap.mode == "block",
                )
        new_ones = {identity[:3] for identity in after if identity not in before}
        for identity, cap in before.items():
            if identity in after:
                continue
            if identity[:3] in new_ones:
                message = f"{_cap(cap)} gets another window, which begins at nothing spent"
                yield self._finding("cap-restarts", message, None)
            else:
                message = f"{_cap(cap)} of {_amount(cap, cap.amount)} is no longer there"
                yield self._finding("cap-removed", message, None)

    def _on_runtime_cap(self, cap: DeclaredCap, runtime: int) -> Iterator[Finding]:
        """Somebody set it while the spec had none, in an incident, say. It becomes the spec's: a
        version without it would take it away."""
        if cap.mode == "block" and cap.amount <= runtime:
            return
        yield self._finding(
            "cap-set-at-runtime",
            f"{_cap(cap)} was set to {_amount(cap, runtime)} at runtime; it would be"
            f" {_amount(cap, cap.amount)} in mode {cap.mode}",
            self._path_of(cap),
        )

    def on_kills(self, kills: Sequence[LiveKill], keys: Sequence[LiveKey]) -> Iterator[Finding]:
        """Kill switches whose name goes, and who leaves what one stops. After ``on_keys`` of the
        same keys."""
        if self._kills is not None and kills:
            moved = [self._moved[key] for key in keys if key in self._moved] if self._moved else []
            yield from self._kills.on(kills, sorted(moved, key=lambda mover: mover.name))

    def on_catalogue(self) -> Iterator[Finding]:
        """Prices and addresses that change."""
        if self._old is None:
            return
        old, new = self._old.spec, self._new.spec
        prices = {model.name: model.price for model in old.models}
        if old.price_version == new.price_version:
            changed = [m.name for m in new.models if prices.get(m.name, m.price) != m.price]
            if changed:
                yield self._finding(
                    "price-version-unchanged",
                    f"the price of {listed(changed)} changed, and price_version is still"
                    f" {new.price_version!r}; the ledger could not tell the two apart",
                    ("price_version",),
                )
        addresses = {provider.name: _address(provider) for provider in old.providers}
        for index, provider in enumerate(new.providers):
            here, there = addresses.get(provider.name), _address(provider)
            if here is not None and here != there:
                yield self._finding(
                    "provider-moves",
                    f"provider {provider.name!r} moves from {here} to {there}; its credentials are"
                    " sent there",
                    ("providers", index),
                )

    def on_declarations(self) -> Iterator[Finding]:
        """What the new spec says and cannot mean."""
        new = self._new.spec
        for index, key in enumerate(new.keys):
            standing = self._new.standing(team="", key=key.name)
            if not self._models(standing, new=True):
                yield self._finding(
                    "key-without-models",
                    f"the policies of key {key.name!r} ({listed(standing.policy.names) or 'none'})"
                    " leave it no model",
                    ("keys", index),
                )
        subjects = (*new.orgs, *new.teams, *new.users, *new.apps, *new.keys)
        applied = {name for subject in subjects for name in subject.policies}
        applied |= {policy.extends for policy in new.policies if policy.extends is not None}
        for index, policy in enumerate(new.policies):
            if policy.name not in applied:
                yield self._finding(
                    "policy-unused",
                    f"policy {policy.name!r} is named by no org, team, user, app, key or policy",
                    ("policies", index),
                )

    def _models(self, standing: Standing, *, new: bool) -> frozenset[str]:
        """Models that a caller may call, by the names that the new spec has for them."""
        known = self._reachable.get((new, standing.policy))
        if known is not None:
            return known
        compiled = self._new if new or self._old is None else self._old
        spec, policy = compiled.spec, standing.policy
        names: set[str] = set()
        for model in spec.models:
            provider = spec.provider_of(model)
            regions = model.processed_in(provider) or ("",)  # not known
            if policy.allows_model(model.name, provider.name) and all(
                policy.allows_region(region) for region in regions
            ):
                renamed = self._new.spec.find_model(model.name)
                names.add(model.name if renamed is None else renamed.name)
        return self._reachable.setdefault((new, standing.policy), frozenset(names))

    def _path_of(self, cap: DeclaredCap) -> DocumentPath:
        section = SECTIONS[cap.scope]
        index = self._places.get((section, cap.scope_id))
        if index is None:
            return (section,)
        quotas = getattr(self._new.spec, section)[index].quotas
        for position, quota in enumerate(quotas):
            if quota.declared(cap.scope, cap.scope_id).identity == cap.identity:
                return (section, index, "quotas", position)
        return (section,)

    def _finding(
        self,
        code: Code,
        message: str,
        path: DocumentPath | None,
        *,
        blocking: bool = True,
    ) -> Finding:
        known = self._document is not None and path is not None
        line = self._document.line_of(path) if known and self._document and path else None
        return Finding(code, message, line, blocking and code in BLOCKING)


def _standing(governance: CompiledGovernance, key: LiveKey) -> Standing | UnknownSubjectError:
    try:
        return governance.standing(
            team=key.team,
            user=key.user,
            app=key.app,
            key=key.key,
            policies=key.policies,
            models=key.models,
        )
    except UnknownSubjectError as unknown:
        return unknown


def _stricter(was: DeclaredCap, cap: DeclaredCap) -> bool:
    return cap.amount < was.amount or (was.mode, cap.mode) == ("audit", "block")


def _address(provider: object) -> str:
    found = (getattr(provider, name, None) for name in ("kind", "region", "api_base", "endpoint"))
    return " ".join(part for part in found if part)


def _ids(ids: Sequence[str], what: str) -> str:
    shown = ", ".join(ids[:SHOWN_KEYS])
    more = f" and {len(ids) - SHOWN_KEYS} more" if len(ids) > SHOWN_KEYS else ""
    noun = "1 live key" if len(ids) == 1 else f"{len(ids)} live keys"
    return f"{noun}: {what} ({shown}{more})"


def _cap(cap: DeclaredCap) -> str:
    return f"the cap of {cap.scope} {cap.scope_id!r} on {cap.dimension}{_per(cap.window)}"


def _per(window: Window) -> str:
    if window.kind == "lifetime":
        return ""
    if window.kind == "calendar":
        return f" per calendar {window.unit} ({window.zone})"
    return f" per {window.seconds} s ({window.kind})"


def _amount(cap: DeclaredCap, amount: int) -> str:
    if cap.dimension != "micro_usd":
        return str(amount)
    whole, micro = divmod(amount, MICRO_USD_PER_USD)
    return f"${whole}.{micro:06d}"
