"""What a change of the spec would do: a diff, and its effect on live keys and running budgets.

Pure: facts about keys and spend are passed in. Equal input gives equal output, byte for byte.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from terrace_common.governance.compiled import Dimension, Scope, Window
from terrace_common.one_line import one_line

Action = Literal["added", "changed", "removed"]
Code = Literal[
    "key-orphaned",
    "key-loses-all-models",
    "key-loses-models",
    "key-moves-team",
    "key-without-models",
    "cap-below-spend",
    "cap-set-at-runtime",
    "cap-restarts",
    "cap-removed",
    "kill-switch-lost",
    "kill-switch-moves",
    "price-version-unchanged",
    "provider-moves",
    "policy-unused",
    "base-unreadable",
]

CODES: Mapping[Code, str] = {
    "key-orphaned": "a live key belongs to somebody who is not declared any more",
    "key-loses-all-models": "a live key could call models and cannot call any more",
    "key-loses-models": "a live key cannot call a model that it could call",
    "key-moves-team": "a live key counts for another team from now on",
    "key-without-models": "the policies of a declared key leave it no model",
    "cap-below-spend": "a cap is below what its window has spent and reserved",
    "cap-set-at-runtime": "a looser cap takes the place of one that was set at runtime",
    "cap-restarts": "a cap gets another window, which begins at nothing spent",
    "cap-removed": "a cap is no longer there",
    "kill-switch-lost": "a kill switch that is on would not stop any more what it is for",
    "kill-switch-moves": "a kill switch that is on would stop others than now",
    "price-version-unchanged": "a price changed and price_version did not",
    "provider-moves": "calls and their credentials go to another address",
    "policy-unused": "a policy applies to nobody",
    "base-unreadable": "the version in force cannot be read by this release, nor compared",
}
"""Every code of a finding. They are stable: scripts may name them in ``--allow``."""

BLOCKING: frozenset[Code] = frozenset(
    {
        "key-orphaned",
        "key-loses-all-models",
        "key-loses-models",
        "cap-below-spend",
        "cap-set-at-runtime",
        "kill-switch-lost",
        "price-version-unchanged",
        "base-unreadable",
    }
)
"""Apply refuses these unless they are allowed by name."""

SIGNS: Mapping[str, str] = {"added": "+", "changed": "~", "removed": "-"}


@dataclass(frozen=True, slots=True)
class LiveKey:
    """A key that is neither revoked nor expired."""

    key_id: str
    team: str
    user: str | None = None
    app: str | None = None
    key: str | None = None
    """The name of the declared key that it is a secret of."""
    models: frozenset[str] | None = None
    """Its own allow-list; ``None``: what its policies allow."""
    policies: tuple[str, ...] = ()
    """Of its own, beside those that the spec gives it."""


@dataclass(frozen=True, slots=True)
class CapSpend:
    """What the window of a cap that runs now has counted: of a cap in force, or of one that is
    not and would go on from there."""

    scope: Scope
    scope_id: str
    dimension: Dimension
    window: Window
    settled: int
    outstanding: int
    runtime: int | None = None
    """The amount of a cap in mode ``block`` that was set at runtime, and that no spec declares."""


@dataclass(frozen=True, slots=True)
class LiveKill:
    """A kill switch that is on. ``kind`` is ``all``, ``key``, ``model`` ..."""

    kind: str
    target: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the database knows and the spec does not."""

    keys: tuple[LiveKey, ...] = ()
    spend: tuple[CapSpend, ...] = ()
    kills: tuple[LiveKill, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A subject, policy, model or provider that differs. ``detail``: one text per field."""

    action: Action
    kind: str
    name: str
    detail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """An effect that somebody should know before. ``line`` is of the new file."""

    code: Code
    message: str
    line: int | None
    blocking: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What would change, and what follows."""

    changes: tuple[Change, ...]
    findings: tuple[Finding, ...]

    @property
    def blocking(self) -> tuple[Code, ...]:
        """Codes that apply refuses unless they are allowed, sorted."""
        return tuple(sorted({finding.code for finding in self.findings if finding.blocking}))

    def refused(self, allow: Collection[str]) -> tuple[Finding, ...]:
        """Blocking findings whose code is not in ``allow``."""
        return tuple(
            finding for finding in self.findings if finding.blocking and finding.code not in allow
        )

    def to_json(self) -> dict[str, object]:
        """Plain data: ``changes``, ``findings``, ``blocking``."""
        return {
            "changes": [
                {**asdict(change), "detail": list(change.detail)} for change in self.changes
            ],
            "findings": [asdict(finding) for finding in self.findings],
            "blocking": list(self.blocking),
        }

    def text(self) -> str:
        """For people."""
        return plan_text(self.to_json())


def plan_text(document: Mapping[str, object], allow: Collection[str] = ()) -> str:
    """A plan as text, from what ``Plan.to_json`` made; ends with a newline. ``allow``: codes that
    are allowed already, so that they are said and not asked for.

    Findings of a code that this version does not know are shown like any other.
    """
    changes = cast("Sequence[Mapping[str, Any]]", document["changes"])
    findings = cast("Sequence[Mapping[str, Any]]", document["findings"])
    lines: list[str] = []
    for change in changes:
        lines.append(f"{SIGNS.get(change['action'], '?')} {change['kind']} {change['name']}")
        lines += [f"    {detail}" for detail in change["detail"]]
    if not changes:
        lines.append("Nothing changes.")
    if findings:
        lines.append("")
    for finding in findings:
        weight = "note"
        if finding["blocking"]:
            weight = "allowed" if finding["code"] in allow else "blocks"
        place = "" if finding.get("line") is None else f" (line {finding['line']})"
        lines.append(f"{weight}: {finding['message']} [{finding['code']}]{place}")
    lines += ["", _sum(changes, findings, allow)]
    return "\n".join(map(one_line, lines)) + "\n"


def _sum(
    changes: Sequence[Mapping[str, Any]],
    findings: Sequence[Mapping[str, Any]],
    allow: Collection[str],
) -> str:
    counts = {
        action: sum(change["action"] == action for change in changes)
        for action in ("added", "changed", "removed")
    }
    said = ", ".join(f"{count} {action}" for action, count in counts.items())
    blocking = sorted({str(f["code"]) for f in findings if f["blocking"]} - set(allow))
    if not blocking:
        return f"{said}."
    return f"{said}. Apply needs {' '.join(f'--allow {code}' for code in blocking)}."
