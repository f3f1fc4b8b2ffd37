"""What makes a file durable without making the event loop wait.

The kernel's asynchronous ``fdatasync`` where it has one (Linux 4.18, and a volume that can): no
thread of ours wakes up for it, so nothing waits for the interpreter. Else a thread.
"""

import asyncio
import errno
import os
import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Protocol

import structlog

if sys.platform == "linux":
    from caio.linux_aio import Context, Operation
else:
    Context = Operation = None

log = structlog.get_logger()

Synced = Callable[[OSError | None], None]
"""Told in the event loop: everything that was written before is durable, or why not."""

PROBE_SECONDS = 10


class Syncer(Protocol):
    """Syncs one file at a time, in the order of the calls."""

    def sync(self, fd: int, synced: Synced) -> None:
        """Begin to make what was written to ``fd`` durable. Raises ``OSError``: not begun."""
        ...

    def close(self) -> None:
        """None comes. Of one that still runs nothing is told."""
        ...


class KernelSyncer:
    """``IOCB_CMD_FDSYNC``; its end comes over an eventfd."""

    def __init__(self, loop: asyncio.AbstractEventLoop, probe: int) -> None:
        """Tries it on ``probe``, a file of the volume, and waits for that.

        Raises ``OSError``: not on this kernel or volume.
        """
        if Context is None or Operation is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        try:
            self._context = Context(max_requests=1)
        except SystemError as error:  # so it names what io_setup answers
            raise OSError(errno.EAGAIN, str(error)) from error
        self._operation = Operation
        self._loop = loop
        told: list[OSError | None] = []
        self.sync(probe, told.append)
        try:
            self._context.process_events(min_requests=1, timeout=PROBE_SECONDS)
        except SystemError as error:  # what io_getevents answers
            raise OSError(errno.EINTR, str(error)) from error
        if told != [None]:
            raise told[0] if told and told[0] else TimeoutError(errno.ETIMEDOUT, "no answer")
        loop.add_reader(self._context.fileno, self._ready)

    def sync(self, fd: int, synced: Synced) -> None:
        """See ``Syncer``."""

        def told(result: int) -> None:
            code = (1 << 64) - result if result >> 63 else 0  # a negative errno, unsigned
            synced(OSError(code, os.strerror(code)) if code else None)

        operation = self._operation.fdsync(fd)
        operation.set_callback(told)
        try:
            begun = self._context.submit(operation) == 1  # pyright: ignore[reportUnknownMemberType]
        except (SystemError, ValueError, OverflowError) as error:  # what io_submit answers
            raise OSError(errno.EINVAL, str(error)) from error
        if not begun:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    def close(self) -> None:
        """See ``Syncer``."""
        self._loop.remove_reader(self._context.fileno)

    def _ready(self) -> None:
        try:
            self._context.poll()
        except BlockingIOError:
            return  # told twice, read once
        self._context.process_events()


class ThreadSyncer:
    """``os.fdatasync`` in the executor's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._loop = loop
        self._executor = executor

    def sync(self, fd: int, synced: Synced) -> None:
        """See ``Syncer``."""

        def ended(future: Future[None]) -> None:
            error = future.exception()
            if error is not None and not isinstance(error, OSError):
                error = OSError(errno.EIO, repr(error))
            if not self._loop.is_closed():  # a volume that was given up
                self._loop.call_soon_threadsafe(synced, error)

        self._executor.submit(os.fdatasync, fd).add_done_callback(ended)

    def close(self) -> None:
        """See ``Syncer``."""


def best_syncer(loop: asyncio.AbstractEventLoop, executor: Executor, probe: int) -> Syncer:
    """The kernel's, or a thread's where the kernel has none; the log says so then."""
    try:
        return KernelSyncer(loop, probe)
    except OSError as error:
        log.warning("spool_syncs_in_a_thread", error=str(error))
        return ThreadSyncer(loop, executor)
