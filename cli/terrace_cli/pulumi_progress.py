"""Turns what `pulumi up` prints (non-interactive, no colours) into a few readable lines."""

import re
from collections.abc import Callable
from pathlib import Path

from terrace_cli.errors import CliError, NotUpInTimeError, UsageError

_RESOURCE = re.compile(
    r"^ (?P<mark>[-+~@<>*=! ]{1,2}) +(?P<type>[\w.-]+:[\w./-]+:[\w./-]+) (?P<name>\S+) "
    r"(?P<state>.+?)\s*$"
)
_ENDED = re.compile(
    r"(?:\*\*)?(created|updated|deleted|replaced|(?:creating|updating|deleting) failed)"
)
_WAITS = re.compile(
    r"ing \(\d[\d.]*m?s\)\s*(?:\[diff: [^\]]*\];?\s*)?(?:(?:warning|info): )?"
    r"(?P<what>(?!\[diff|;)\S.*)$"
)
# How the program's own errors begin: a stack's settings, its keys, or a line of a governance file.
_SETTINGS = re.compile(
    r"error:.*(Pulumi\.[\w-]+\.yaml|\bterrace:(?!index)\w+|\.ya?ml(:\d+|, line))"
)
# Said by Pulumi on every run, or after the program has said what matters.
_NOISE = re.compile(
    r"using pulumi-resource-[\w-]+ from \$PATH"
    r"|an unhandled error occurred: program exited with (a )?non-zero exit code"
)
_DIAGNOSTIC_LINES = 24


class UpdateLog:
    """Follows Pulumi's output file. `say` gets a line per finished resource and per wait."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._offset = 0
        self._rest = b""
        self._lines: list[str] = []
        self._said: set[str] = set()

    def follow(self) -> None:
        """Report what has been written since the last call."""
        with self._path.open("rb") as source:
            source.seek(self._offset)
            fresh = source.read()
        self._offset += len(fresh)
        *lines, self._rest = (self._rest + fresh).split(b"\n")
        for raw in lines:
            line = raw.decode(errors="replace")
            self._lines.append(line)
            if (sentence := readable(line)) and sentence not in self._said:
                self._said.add(sentence)
                self._say(sentence)

    @property
    def was_locked_out(self) -> bool:
        """Whether another Pulumi held the stack."""
        return any("the stack is currently locked by" in line for line in self._lines)

    def failure(self, code: int) -> CliError:
        """The error to raise: Pulumi's diagnostics, and where the whole log is."""
        text = [*self._lines, self._rest.decode(errors="replace")]
        told = diagnostics(text) or [line for line in text if line.strip()][-_DIAGNOSTIC_LINES:]
        lines = "\n".join(f"  {line}" for line in told[:_DIAGNOSTIC_LINES])
        message = f"pulumi up failed (code {code}):\n{lines}\nThe whole log: {self._path}"
        settings_are_wrong = any(_SETTINGS.search(line) for line in told)
        return UsageError(message) if settings_are_wrong else NotUpInTimeError(message)


def readable(line: str) -> str | None:
    """`created Deployment gateway (12s)` out of one line of Pulumi's, or None for noise."""
    if line.strip().startswith("Resources:") or _NOISE.search(line):
        return None
    match = _RESOURCE.match(line)
    if match is None:
        changes = re.fullmatch(r"\s+(\d+ unchanged|\d+ changes\. \d+ unchanged)", line)
        return changes.group(1) if changes else None
    kind = match["type"].rsplit(":", 1)[-1]
    if kind == "Stack":
        return None
    state = match["state"]
    if ended := _ENDED.match(state):
        took = re.search(r"\((\d[\d.]*m?s)\)", state)
        return f"{ended.group(1)} {kind} {match['name']}" + (f" ({took.group(1)})" if took else "")
    waits = _WAITS.search(state)
    return f"{kind} {match['name']}: {waits['what']}" if waits else None


def diagnostics(lines: list[str]) -> list[str]:
    """The lines of Pulumi's `Diagnostics:` section that say what went wrong."""
    try:
        start = next(i for i, line in enumerate(lines) if line.startswith("Diagnostics:")) + 1
    except StopIteration:
        return [line.strip() for line in lines if "error:" in line and not _NOISE.search(line)]
    section: list[str] = []
    heading: list[str] = []
    for line in lines[start:]:
        if line and not line.startswith(" "):
            break
        if re.match(r"  \S", line):
            heading = [line.strip()]
        elif line.strip() and not _NOISE.search(line):
            # A resource of which only noise was said is not worth its heading.
            section += [*heading, line.strip()]
            heading = []
    # Python's own frames help nobody who did not write the program; the last line of one does.
    return [line for line in section if not re.match(r'File "|\^+$|~*\^+~*$|Traceback', line)]
