"""What people and scripts see: results on stdout, progress on stderr, JSON when asked for."""

import json
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from terrace_common.one_line import one_line


def emit_json(value: object) -> None:
    """One JSON document on stdout, keys in the order they were made."""
    click.echo(json.dumps(value, indent=2))


def emit_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns padded to their widest cell; no borders, so that `awk` and eyes both work.

    A row is one line whatever its cells hold.
    """
    lines = [list(header), *[[one_line(cell) for cell in row] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


class Progress:
    """Live lines on stderr with the seconds since the command began; keeps what each part took.

    Safe to call from several threads: image builds and the cluster's start report side by side.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._last = ""
        self.seconds: dict[str, float] = {}

    def say(self, part: str, text: str) -> None:
        """Print one line, unless it would repeat the line before it."""
        with self._lock:
            line = f"{part}: {text}"
            if line == self._last:
                return
            self._last = line
            elapsed = time.monotonic() - self._began
            stamp = click.style(f"[{elapsed:7.1f} s]", dim=True)
            click.echo(f"{stamp} {line}", file=sys.stderr)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time one part of the work under its name (also when it fails)."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - began

    @property
    def total_seconds(self) -> float:
        """Seconds since the command began."""
        return time.monotonic() - self._began


class TaskLines:
    """The progress of `terrace_local` (tasks that begin, step and end) as lines of a Progress."""

    def __init__(self, progress: Progress, part: str) -> None:
        self._progress = progress
        self._part = part

    def remaining(self, count: int) -> None:
        """So many tasks are left; the lines of the tasks say enough."""

    def begin(self, task: str, step: str) -> None:
        """A task has begun."""
        self._progress.say(self._part, f"{task}: {step}")

    def step(self, task: str, step: str) -> None:
        """A task has come to another step."""
        self._progress.say(self._part, f"{task}: {step}")

    def end(self, task: str, outcome: str) -> None:
        """A task is over."""
        self._progress.say(self._part, f"{task}: {outcome}")

    def note(self, text: str) -> None:
        """Something a person should read."""
        self._progress.say(self._part, text)


def counted(count: int, noun: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe_seconds(seconds: float) -> str:
    """`8.2 s` below two minutes, `12.4 min` above."""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def describe_bytes(count: int) -> str:
    """`0 B`, `14.2 MiB`: binary units, one decimal."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"
