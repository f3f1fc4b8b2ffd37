"""What goes wrong while binaries are being made available."""

from collections.abc import Sequence
from pathlib import Path


class ToolchainError(Exception):
    """A binary (or a Debian package) could not be had. The message is for people.

    It names what was wanted, the step that failed, why, and, where a program was run, its log file
    and last lines.
    """

    def __init__(
        self,
        message: str,
        *,
        subject: str = "",
        step: str = "",
        log: Path | None = None,
        last_lines: Sequence[str] = (),
    ) -> None:
        self.subject = subject
        self.step = step
        self.log = log
        self.last_lines = tuple(last_lines)
        head = ": ".join(part for part in (subject, step, message) if part)
        tail = "".join(f"\n    {line}" for line in self.last_lines)
        where = f"\n  log: {log}" if log else ""
        super().__init__(f"{head}{tail}{where}")


class ManifestError(ToolchainError):
    """The manifest is not what its schema says."""


class Stopped(Exception):  # noqa: N818 - not an error: the run was told to end
    """The run is being ended (Ctrl-C, or another part of it failed)."""
