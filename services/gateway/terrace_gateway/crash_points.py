"""Places where a test kills the process. Without ``TERRACE_CRASH_AT`` they do nothing."""

import os
import signal

_SETTING = "TERRACE_CRASH_AT"
_name, _, _count = os.environ.get(_SETTING, "").partition(":")
_left = [int(_count or 1)]


def reach(name: str) -> None:
    """Die here, by SIGKILL, if ``TERRACE_CRASH_AT`` is ``name`` or ``name:n`` (the n-th time)."""
    if not _name or name != _name:
        return
    _left[0] -= 1
    if _left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
