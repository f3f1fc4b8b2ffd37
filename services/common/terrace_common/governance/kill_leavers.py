"""Who is stopped by a kill switch now and would call again after a change of the spec: the team,
app, user or key stays, and belongs to others."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.plan import Finding

Place = tuple[str, str]
"""Kind and name, as of a kill switch."""

_SUBJECTS = (("teams", "team"), ("apps", "app"), ("users", "user"), ("keys", "key"))
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Mover:
    """Somebody who belongs to others by the new spec. ``before``, ``after``: whose switches stop
    its calls."""

    kind: str
    name: str
    before: tuple[Place, ...]
    after: tuple[Place, ...]
    own_switch: Place | None = None
    """The switch that is meant for exactly this one: who leaves that must not go unseen."""
    way_out: str = ""


def places(governance: CompiledGovernance, kind: str, name: str) -> tuple[Place, ...]:
    """The org, team, user, app and key that a declared one belongs to, itself among them."""
    return governance.standing(**{"team": "", kind: name}).scopes


def moved_subjects(old: CompiledGovernance, new: CompiledGovernance) -> Iterator[Mover]:
    """Teams, apps, users and keys that both specs declare."""
    for section, kind in _SUBJECTS:
        known = {subject.name for subject in getattr(old.spec, section)}
        for subject in getattr(new.spec, section):
            if subject.name in known:
                before, after = (places(one, kind, subject.name) for one in (old, new))
                if before != after:
                    yield Mover(kind, subject.name, before, after)


def leaving(
    movers: Iterable[Mover], switches: frozenset[Place], lost: Container[Place]
) -> Iterator[Finding]:
    """Those whom one of ``switches`` stops before and none stops after; not whoever leaves with a
    team, app or user that is told, and so comes earlier in ``movers``. ``lost``: switches that are
    told of as a whole."""
    told: set[Place] = set()
    found: defaultdict[tuple[Place, str], list[str]] = defaultdict(list)
    for mover in movers:
        by = [place for place in mover.before if place in switches]
        if not by or not switches.isdisjoint(mover.after):
            continue
        left = [place for place in by if place not in lost]
        if mover.own_switch in left:
            yield Finding("kill-switch-lost", _not_held(mover), line=None, blocking=True)
        elif left and told.isdisjoint(place for place in mover.before if place in mover.after):
            told.add((mover.kind, mover.name))
            found[left[0], mover.kind].append(f"{mover.kind} {mover.name!r}")
    for ((kind, target), _), names in found.items():
        yield Finding(
            "kill-switch-moves",
            f"kill switch {kind}:{target} would not stop {shown(names)} any more: not of that"
            f" {kind} then, and stopped by no other switch",
            line=None,
            blocking=False,
        )


def shown(names: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _not_held(mover: Mover) -> str:
    kind, target = mover.own_switch or ("", "")
    return f"kill switch {kind}:{target} would not stop {mover.kind} {mover.name!r}{mover.way_out}"
