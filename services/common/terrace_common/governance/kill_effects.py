"""What a change of the spec does to kill switches that are on. A switch stops by a name, and a name
may go."""

from collections.abc import Iterable, Iterator

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


def effects_on_kills(
    old: Governance, new: Governance, kills: Iterable[LiveKill]
) -> Iterator[Finding]:
    """Switches that would stop nothing any more, and those that would stop another model.

    One that stops nothing by the old spec either blocks no unrelated change.
    """
    for kill in kills:
        if not _stops(old, kill):
            continue
        if not _stops(new, kill):
            yield _lost(kill)
        elif kill.kind == "model":
            was, now = old.find_model(kill.target), new.find_model(kill.target)
            if was is not None and now is not None and was.name != now.name:
                yield Finding(
                    "kill-switch-moves",
                    f"kill switch model:{kill.target}, which stops model {was.name!r}, would stop"
                    f" {now.name!r}: it has that name then",
                    line=None,
                    blocking=False,
                )


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
