"""What can go wrong with the embedded cluster, one class per exit code of the CLI."""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "ClusterError",
    "HeldByAnother",
    "NotRunning",
    "PreflightFailed",
    "Problem",
    "StartTimeout",
    "Unanswered",
]


@dataclass(frozen=True)
class Problem:
    """Something that stands in the way, said for people: what is wrong and what would be right."""

    subject: str
    message: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.subject}: {self.message}"
        return f"{text} ({self.remedy})" if self.remedy else text


class ClusterError(Exception):
    """A fault whose text is meant for people."""


class PreflightFailed(ClusterError):  # noqa: N818 - says what happened
    """The machine lacks something. Nothing was changed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "this machine cannot run the cluster:\n" + "\n".join(f"  - {p}" for p in self.problems)
        )


class HeldByAnother(ClusterError):  # noqa: N818 - says what happened
    """Another clone holds the machine's cluster, or another command is working on it."""


class StartTimeout(ClusterError):  # noqa: N818 - says what happened
    """A part did not come up in time. Names the part and the last lines of its log."""


class NotRunning(ClusterError):  # noqa: N818 - says what happened
    """The call needs a running cluster and there is none."""


class Unanswered(ClusterError):  # noqa: N818 - says what happened
    """The API server gave no answer, or none about the call itself. What may be repeated can be."""
