"""Ctrl-C: the children of this command end with it; the cluster's processes do not.

SIGTERM (a CI runner, systemd) and SIGHUP (a closed terminal) mean the same.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

_LIKE_CTRL_C = (signal.SIGTERM, signal.SIGHUP)
_TOLD = b"Pulumi was told to stop; it ends what it has begun.\n"


@contextlib.contextmanager
def end_as_ctrl_c() -> Iterator[None]:
    """Inside of it SIGTERM and SIGHUP raise KeyboardInterrupt, as SIGINT does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    before = _handle(_LIKE_CTRL_C, interrupt)
    try:
        yield
    finally:
        _restore(before)


class StopSignals:
    """While a child works, SIGINT, SIGTERM and SIGHUP make it cancel instead of ending us.

    Pulumi cancels in order at its first SIGINT and drops its work at the second. So only Ctrl-C
    that is pressed again is handed on again; a runner's SIGTERM after its SIGINT is not.
    """

    def __init__(self, *, ctrl_c_reaches_the_child: bool) -> None:
        self.came = False
        self._reaches = ctrl_c_reaches_the_child
        self._child: subprocess.Popen[bytes] | None = None
        self._to_send = 0
        self._before: dict[signal.Signals, Any] = {}

    def forward_to(self, child: "subprocess.Popen[bytes]") -> None:
        """Hand on what comes from now on, and what has come since `with` began."""
        self._child = child
        self._send()

    def __enter__(self) -> "StopSignals":
        self._before = _handle((signal.SIGINT, *_LIKE_CTRL_C), self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _restore(self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        is_ctrl_c = number == signal.SIGINT
        if (is_ctrl_c and not self._reaches) or (not is_ctrl_c and not self.came):
            self._to_send += 1
        self.came = True
        # Not through sys.stderr: the signal may have come in the middle of a write to it.
        with contextlib.suppress(OSError):
            os.write(2, _TOLD)
        self._send()

    def _send(self) -> None:
        while self._child is not None and self._to_send:
            self._to_send -= 1
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(signal.SIGINT)


def _handle(
    numbers: tuple[signal.Signals, ...], handler: Callable[[int, FrameType | None], None]
) -> dict[signal.Signals, Any]:
    """Set a handler; what was there before. What is ignored (`nohup`) stays so."""
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    return before


def _restore(before: dict[signal.Signals, Any]) -> None:
    for number, handler in before.items():
        signal.signal(number, handler)


def stop_children(*, grace_seconds: float = 5) -> None:
    """End every process that descends from this one and lives in its session.

    The cluster's processes run in sessions of their own and belong to the machine, not to a
    command: they stay, recorded, and the next `up` or `down` finds them.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        children = _descendants(os.getpid(), session=os.getsid(0))
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        deadline = time.monotonic() + grace_seconds
        while time.monotonic() < deadline and _descendants(os.getpid(), session=os.getsid(0)):
            time.sleep(0.05)


def _descendants(root: int, *, session: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command's name may hold blanks and brackets; fields count from its last bracket.
            state, parent, _, member_of = stat.read_text().rpartition(")")[2].split()[:4]
            if state != "Z" and int(member_of) == session:
                children.setdefault(int(parent), []).append(int(stat.parent.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found
