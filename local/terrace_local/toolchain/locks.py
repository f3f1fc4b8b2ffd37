"""One lock file per cache entry, so that two processes never make the same thing."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_SECONDS = 0.2


@contextmanager
def locked(
    file: Path,
    *,
    waiting: Callable[[str], None] = lambda _holder: None,
    check: Callable[[], None] = lambda: None,
) -> Iterator[None]:
    """Hold `file`'s lock; the kernel drops it when this process dies, however it dies.

    `waiting` is called once, with the holder's pid, if somebody else has it; `check` is called
    while waiting and may raise to give up.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        said = False
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not said:
                    waiting(os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "?")
                    said = True
                check()
                time.sleep(_POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
