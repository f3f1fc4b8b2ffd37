"""Saying what goes on: what, which step, how long so far, how many are left."""

import shutil
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self, TextIO

_REPEAT_SECONDS = 30.0
_TICK_SECONDS = 0.5


class Progress(Protocol):
    """Receives events, from several threads at once. Implementations must not raise."""

    def remaining(self, count: int) -> None:
        """`count` binaries are still to be made available."""

    def begin(self, task: str, step: str) -> None:
        """A task (a binary, an archive or a module) has begun with this step."""

    def step(self, task: str, step: str) -> None:
        """A task that has begun is now at this step."""

    def end(self, task: str, outcome: str) -> None:
        """A task is over: "built", "downloaded" or why not."""

    def note(self, text: str) -> None:
        """Something that a person should read, once."""


class Silent:
    """Progress for nobody."""

    def remaining(self, count: int) -> None: ...
    def begin(self, task: str, step: str) -> None: ...
    def step(self, task: str, step: str) -> None: ...
    def end(self, task: str, outcome: str) -> None: ...
    def note(self, text: str) -> None: ...


class ConsoleProgress:
    """On a terminal one line that updates itself; elsewhere a line when a task begins, when it ends
    and every 30 s between. Use it as a context manager."""

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        repeat_seconds: float = _REPEAT_SECONDS,
    ) -> None:
        self._stream = stream or sys.stderr
        self._terminal = self._stream.isatty()
        self._clock = clock
        self._repeat = repeat_seconds
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._tasks: dict[str, tuple[float, str]] = {}
        self._left = 0
        self._said_at = clock()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Self:
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._ticker.join()
        with self._lock:
            self._clear_line()

    def remaining(self, count: int) -> None:
        with self._lock:
            self._left = count

    def begin(self, task: str, step: str) -> None:
        with self._lock:
            self._tasks[task] = (self._clock(), step)
            if not self._terminal:
                self._say(f"{task}: {step} ({self._left} left)")

    def step(self, task: str, step: str) -> None:
        with self._lock:
            began = self._tasks[task][0] if task in self._tasks else self._clock()
            self._tasks[task] = (began, step)

    def end(self, task: str, outcome: str) -> None:
        with self._lock:
            began, _ = self._tasks.pop(task, (self._clock(), ""))
            self._say(f"{task}: {outcome} in {_span(self._clock() - began)} ({self._left} left)")

    def note(self, text: str) -> None:
        with self._lock:
            self._say(text)

    def refresh(self) -> None:
        """Draw the updating line, or repeat the running tasks when it is time for that."""
        with self._lock:
            now = self._clock()
            if not self._tasks:
                return
            running = "; ".join(
                f"{task}: {step} {_span(now - began)}"
                for task, (began, step) in self._tasks.items()
            )
            line = f"{running} ({self._left} left)"
            if self._terminal:
                self._clear_line()
                self._stream.write(line[: _width() - 1])
                self._stream.flush()
            elif now - self._said_at >= self._repeat:
                self._say(line)

    def _tick(self) -> None:
        while not self._done.wait(_TICK_SECONDS):
            self.refresh()

    def _say(self, text: str) -> None:
        if self._terminal:
            self._clear_line()
        self._stream.write(f"toolchain: {text}\n")
        self._stream.flush()
        self._said_at = self._clock()

    def _clear_line(self) -> None:
        if self._terminal:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _width() -> int:
    return shutil.get_terminal_size().columns
