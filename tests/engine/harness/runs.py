"""What a run of the engine did, from its event log and its output."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

# The engine's names for steps that leave a resource alone.
QUIET = frozenset({"same", "read", "refresh"})
REPLACEMENTS = frozenset({"replace", "create-replacement", "delete-replaced"})


@dataclass(frozen=True)
class Step:
    """One step on one resource: ``op`` is the engine's word (create, update, delete, ...)."""

    op: str
    type: str
    name: str
    urn: str
    failed: bool = False
    keys: tuple[str, ...] = ()
    """Properties that differ."""

    def __str__(self) -> str:
        return f"{self.op} {self.type} {self.name}"


@dataclass(frozen=True)
class Run:
    """A finished run. ``killed`` ones have the exit code of the signal, below zero."""

    command: str
    exit_code: int
    output: str
    events: Sequence[dict[str, Any]]

    @classmethod
    def read(cls, command: str, exit_code: int, output: str, log: Path) -> "Run":
        lines = log.read_text().splitlines() if log.exists() else []
        return cls(command, exit_code, output, [*_whole(lines)])

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @cached_property
    def planned(self) -> list[Step]:
        """Every step that was begun, in the order of the engine."""
        return [_step(event["resourcePreEvent"]) for event in self._of("resourcePreEvent")]

    @cached_property
    def done(self) -> list[Step]:
        """Every step that ended well, in the order of the engine."""
        return [_step(event["resOutputsEvent"]) for event in self._of("resOutputsEvent")]

    @cached_property
    def failed(self) -> list[Step]:
        """Every step that failed."""
        return [_step(event["resOpFailedEvent"]) for event in self._of("resOpFailedEvent")]

    @property
    def changes(self) -> list[Step]:
        """What was done, or in a preview would be, without what was left as it is."""
        return [step for step in self.planned if step.op not in QUIET]

    @property
    def replaced(self) -> list[str]:
        """Types of what was replaced, or would be."""
        return sorted({step.type for step in self.planned if step.op in REPLACEMENTS})

    @cached_property
    def errors(self) -> str:
        """The diagnostics of severity error, in one text; first what is not a mere consequence."""
        diagnostics = [event["diagnosticEvent"] for event in self._of("diagnosticEvent")]
        messages = [d["message"] for d in diagnostics if d["severity"] == "error"]
        # When the engine stops, the program dies of the calls that it has under way.
        return "\n".join(sorted(messages, key=lambda text: "resource monitor" in text.lower()))

    @cached_property
    def warnings(self) -> str:
        """The diagnostics of severity warning, in one text."""
        diagnostics = [event["diagnosticEvent"] for event in self._of("diagnosticEvent")]
        return "\n".join(d["message"] for d in diagnostics if d["severity"] == "warning")

    def of(self, op: str, kind: str = "") -> list[Step]:
        """Steps done of one kind: ``run.of("create", "aws:eks/cluster:Cluster")``."""
        return [s for s in self.done if s.op == op and kind in s.type]

    def must_work(self) -> "Run":
        assert self.ok, f"pulumi {self.command} failed:\n{self.errors or self.output}"
        return self

    def must_fail(self) -> "Run":
        assert not self.ok, f"pulumi {self.command} worked:\n{self.output}"
        return self

    def _of(self, kind: str) -> Iterable[dict[str, Any]]:
        return (event for event in self.events if kind in event)


def _whole(lines: Sequence[str]) -> Iterable[dict[str, Any]]:
    """The events of a log; the last line of a killed engine may be cut off."""
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except ValueError:
            if number != len(lines):
                raise


def _step(event: dict[str, Any]) -> Step:
    metadata = event["metadata"]
    return Step(
        op=metadata["op"],
        type=metadata["type"],
        name=metadata["urn"].rpartition("::")[2],
        urn=metadata["urn"],
        keys=tuple(metadata.get("diffs") or ()),
    )
