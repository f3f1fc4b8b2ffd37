"""What a change of the spec does to kill switches that are on. A switch stops by a name, and a name
may go."""

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator

from terrace_common.governance.catalogue import Model
from terrace_common.governance.compile import CompiledGovernance
from terrace_common.governance.kill_bearers import lost_ids, moved_bearers
from terrace_common.governance.kill_leavers import Mover, Place, leaving, moved_subjects, shown
from terrace_common.governance.plan import Finding, LiveKill
from terrace_common.governance.spec import Governance

_SECTIONS = {"team": "teams", "user": "users", "app": "apps", "key": "keys"}
_FIRST = {
    "model": "keep its name as an alias",
    "provider": "kill its models, and then lift this one",
    "org": "kill its teams, and then lift this one",
    "team": "kill its users, apps and keys, and then lift this one",
    "user": "kill the ids of their keys, and then lift this one",
    "app": "kill the ids of its keys, and then lift this one",
    "key": "kill the ids of its secrets, and then lift this one",
}


class KillEffects:
    """What ``new`` in the place of ``old`` does to kill switches. Made once for plans on several
    states of the running system."""

    def __init__(self, old: CompiledGovernance, new: CompiledGovernance) -> None:
        self._old, self._new = old.spec, new.spec
        self._movers = (*moved_subjects(old, new), *moved_bearers(old, new))

    def on(self, kills: Iterable[LiveKill], keys: Iterable[Mover]) -> Iterator[Finding]:
        """Switches that would stop nothing any more, or not what they stop now, and those that
        would stop another. ``keys``: live ones that belong to others then.

        A switch of a name that stops nothing by the old spec either blocks no unrelated change.
        """
        kills = tuple(kills)
        old, new = self._old, self._new
        switches = frozenset((kill.kind, kill.target) for kill in kills)
        stopped = {now.name for kill in kills if kill.kind == "model"
                   if (now := new.find_model(kill.target)) is not None}  # fmt: skip
        lost: set[Place] = {place for place in switches if place[0] == "model"}  # _of_model's
        for kill in kills:
            did, does = _stops(old, kill), _stops(new, kill)
            if kill.kind == "model":
                yield from _of_model(old, new, kill, stopped)
            elif did and not does:
                lost.add((kill.kind, kill.target))
                yield _lost(kill)
            elif does and not did and kill.kind != "provider":  # its models are told
                yield _note(
                    f"kill switch {kill.kind}:{kill.target}, which stops nobody now, would stop"
                    f" {kill.kind} {kill.target!r}. Lift it if that is not meant"
                )
        yield from lost_ids(old, new, kills)
        movers = (*_moved_models(old, new), *self._movers, *keys)
        yield from leaving(movers, switches, lost)
        yield from _newly_stopped(old, new, switches)


def _of_model(
    old: Governance, new: Governance, kill: LiveKill, stopped: Container[str]
) -> Iterator[Finding]:
    """``stopped``: models of the new spec that a switch of a model stops."""
    was, now = old.find_model(kill.target), new.find_model(kill.target)
    if was is None:
        if now is not None:
            yield _note(
                f"kill switch model:{kill.target}, which stops nothing now, would stop"
                f" {now.name!r}: it has that name then. Lift it if that is not meant"
            )
        return
    same = new.find_model(was.name)
    if same is not None and same.name not in stopped:
        message = (
            f"kill switch model:{kill.target} stops model {was.name!r}, which would be called"
            f" again: it is model {same.name!r} then, and the switch's name is"
            f" {'nobody' if now is None else now.name!r}'s. First kill model:{was.name}, or keep"
            " the name as its alias"
        )
        yield Finding("kill-switch-lost", message, line=None, blocking=True)
    elif now is None and same is None:
        yield _lost(kill)
    elif now is None:
        yield _note(
            f"kill switch model:{kill.target} would stop nothing; another stops model"
            f" {was.name!r}. Lift it"
        )
    elif was.name != now.name:
        yield _note(
            f"kill switch model:{kill.target}, which stops model {was.name!r}, would stop"
            f" {now.name!r}: it has that name then"
        )


def _moved_models(old: Governance, new: Governance) -> Iterator[Mover]:
    """Models, by whatever name, and guardrails that another provider has."""
    for now in new.models:
        was = _was(old, now)
        if was is not None and was.provider != now.provider:
            yield Mover("model", now.name, _places_of(was), _places_of(now))
    asks = {one.name: getattr(one, "provider", None) for one in old.guardrails}
    for guardrail in new.guardrails:
        at, then = asks.get(guardrail.name), getattr(guardrail, "provider", None)
        if at is not None and then is not None and at != then:
            before, after = ("provider", at), ("provider", then)
            yield Mover("guardrail", guardrail.name, (before,), (after,))


def _newly_stopped(
    old: Governance, new: Governance, switches: frozenset[Place]
) -> Iterator[Finding]:
    """By a switch of the provider; those of models are told one by one."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for now in new.models:
        was = _was(old, now)
        if ("provider", now.provider) not in switches:
            continue
        if was is None or switches.isdisjoint(_places_of(was)):
            found[now.provider].append(f"model {now.name!r}")
    for provider, names in found.items():
        yield _note(
            f"kill switch provider:{provider} would stop {shown(names)}, which it does not stop now"
        )


def _was(old: Governance, model: Model) -> Model | None:
    named = map(old.find_model, (model.name, *model.aliases))
    return next((one for one in named if one is not None), None)


def _places_of(model: Model) -> tuple[Place, ...]:
    names = (model.name, *model.aliases)
    return (("provider", model.provider), *(("model", name) for name in names))


def _note(message: str) -> Finding:
    return Finding("kill-switch-moves", message, line=None, blocking=False)


def lost_kills(new: Governance, kills: Iterable[LiveKill]) -> Iterator[Finding]:
    """Switches that stop nothing by ``new``, when nobody knows what they stopped before. Not of
    keys, which may be ids: those of a declared key that is gone are ``key-orphaned``."""
    for kill in kills:
        if kill.kind in _FIRST and kill.kind != "key" and not _stops(new, kill):
            yield _lost(kill)


def _stops(spec: Governance, kill: LiveKill) -> bool:
    """Whether the spec has somebody for it to stop. Not keys by their ids: no spec names those."""
    name = kill.target
    if kill.kind == "model":
        return spec.find_model(name) is not None
    if kill.kind == "team" and not spec.teams:
        return True  # keys of every team are accepted
    named: Iterable[str | None] = ()
    if kill.kind == "provider":
        guarding = (getattr(guardrail, "provider", None) for guardrail in spec.guardrails)
        named = (*(model.provider for model in spec.models), *guarding)
    elif kill.kind == "org":
        named = (team.org for team in spec.teams)
    elif kill.kind in _SECTIONS:
        named = (subject.name for subject in getattr(spec, _SECTIONS[kill.kind]))
    return name in named


def _lost(kill: LiveKill) -> Finding:
    message = (
        f"kill switch {kill.kind}:{kill.target} is on and would stop nothing: no {kill.kind} that"
        " is called so is left. If it goes on under another name,"
        f" {_FIRST[kill.kind]}; else lift it"
    )
    return Finding("kill-switch-lost", message, line=None, blocking=True)
