"""What a change of the spec does to kill switches that are on. A switch stops by a name, and a name
may go."""

from collections.abc import Container, Iterable, Iterator

from terrace_common.governance.plan import Finding, LiveKill
from terrace_common.governance.spec import Governance

_SECTIONS = {"team": "teams", "user": "users", "app": "apps", "key": "keys"}
_MEMBERS = {
    "provider": (("models", "model", "provider"),),
    "org": (("teams", "team", "org"),),
    "team": (("users", "user", "team"), ("apps", "app", "team"), ("keys", "key", "team")),
}
"""Section, kind and the field that names the owner."""
_SHOWN = 5
_FIRST = {
    "model": "keep its name as an alias",
    "provider": "kill its models, and then lift this one",
    "org": "kill its teams, and then lift this one",
    "team": "kill its users, apps and keys, and then lift this one",
    "user": "kill the ids of their keys, and then lift this one",
    "app": "kill the ids of its keys, and then lift this one",
    "key": "kill the ids of its secrets, and then lift this one",
}


def effects_on_kills(
    old: Governance, new: Governance, kills: Iterable[LiveKill]
) -> Iterator[Finding]:
    """Switches that would stop nothing any more, or not what they stop now, and those that would
    stop another model.

    One that stops nothing by the old spec either blocks no unrelated change.
    """
    kills = tuple(kills)
    models = {now.name for kill in kills if kill.kind == "model"
              if (now := new.find_model(kill.target)) is not None}  # fmt: skip
    for kill in kills:
        if not _stops(old, kill):
            continue
        if kill.kind == "model":
            yield from _of_model(old, new, kill, models)
        elif not _stops(new, kill):
            yield _lost(kill)
        else:
            yield from _leaving(old, new, kill, models, kills)


def _of_model(
    old: Governance, new: Governance, kill: LiveKill, stopped: Container[str]
) -> Iterator[Finding]:
    """``stopped``: models of the new spec that a switch of a model stops."""
    was, now = old.find_model(kill.target), new.find_model(kill.target)
    if was is None:
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


def _leaving(
    old: Governance,
    new: Governance,
    kill: LiveKill,
    models: Container[str],
    kills: Iterable[LiveKill],
) -> Iterator[Finding]:
    """Of a switch that still stops somebody: who would be out of its reach."""
    if kill.kind not in _MEMBERS:
        return
    switches = {(one.kind, one.target) for one in kills}
    for section, kind, owner in _MEMBERS[kill.kind]:
        were = {one.name for one in getattr(old, section) if getattr(one, owner) == kill.target}
        gone = [
            f"{kind} {one.name!r}"
            for one in getattr(new, section)
            if one.name in were
            and getattr(one, owner) not in (None, kill.target)
            and (kill.kind, getattr(one, owner)) not in switches
            and (one.name not in models if kind == "model" else (kind, one.name) not in switches)
        ]
        if gone:
            more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
            yield _note(
                f"kill switch {kill.kind}:{kill.target} would not stop"
                f" {', '.join(gone[:_SHOWN])}{more} any more: another {owner} has it then"
            )


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
