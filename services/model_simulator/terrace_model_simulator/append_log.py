"""An append-only file of JSON lines, durable by group commit.

One thread writes and syncs; every line that arrives while it syncs shares the next sync. A line is
on the disk when its future is done. Lines are all-or-nothing: a write that fails is cut off again.
"""

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

Record = dict[str, Any]


class LogUnavailableError(Exception):
    """The line is not on the disk: no space, an I/O error, or the log is closed."""


class LogCorruptError(ValueError):
    """The file holds something that is not a record before its last record; names file and line."""


class LogLockedError(RuntimeError):
    """Another process writes this file."""


@dataclass(slots=True)
class _Pending:
    line: bytes
    essential: bool
    done: asyncio.Future[None] | None


class AppendLog:
    """Use from one event loop. ``essential`` lines may use the reserve, the others never do.

    ``reserve_bytes`` of disk are held in a file beside the log. When the disk is full they are
    freed for essential lines, and other lines are refused until the reserve could be made again.
    """

    def __init__(self, path: Path, replay: Callable[[Record], None], *, reserve_bytes: int) -> None:
        """Open (or create) the file, take its lock, replay its records, cut off a torn tail.

        Raises LogLockedError, LogCorruptError, or OSError when the place cannot be written.
        """
        self._reserve_path = path.with_name(path.name + ".reserve")
        self._reserve_bytes = reserve_bytes
        self._reserve_held = False
        self._failure: str | None = None
        self._pending: list[_Pending] = []
        self._closing = False
        self._wake = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise LogLockedError(f"{path}: another process writes this bill") from error
            with path.open("rb") as file:
                self._length = replay_lines(file, replay, source=str(path))
            self.torn_bytes = os.fstat(self._fd).st_size - self._length
            if self.torn_bytes:
                os.ftruncate(self._fd, self._length)
            os.fsync(self._fd)
            _sync_directory(path.parent)
        except BaseException:
            os.close(self._fd)
            raise

    def start(self) -> None:
        """Start the writer; call inside the event loop that will append."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="bill-writer", daemon=True)
        self._thread.start()

    async def append(self, record: Record, *, essential: bool = False) -> None:
        """Return when the record is on the disk. Raises LogUnavailableError if it is not."""
        done = asyncio.get_running_loop().create_future()
        self._enqueue(_Pending(_encode(record), essential, done))
        await done

    def note(self, record: Record) -> None:
        """Write a record soon; nobody waits and nobody is told if it fails."""
        self._enqueue(_Pending(_encode(record), essential=False, done=None))

    def close(self) -> None:
        """Write what is queued, stop the writer, release the lock. Blocks until that is done."""
        with self._wake:
            if self._closing:
                return
            self._closing = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        os.close(self._fd)

    def _enqueue(self, item: _Pending) -> None:
        with self._wake:
            if self._closing:
                if item.done is not None:
                    item.done.set_exception(LogUnavailableError("the bill is closed"))
                return
            self._pending.append(item)
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._pending and not self._closing:
                    self._wake.wait()
                batch, self._pending = self._pending, []
            if not batch:
                return
            self._commit(batch)

    def _commit(self, batch: list[_Pending]) -> None:
        """Write a batch; if it does not fit, at least its essential lines."""
        essential = [item for item in batch if item.essential]
        error: LogUnavailableError | None = None
        try:
            if len(essential) < len(batch):
                self._hold_reserve()
            self._write(batch)
        except LogUnavailableError as refused:
            error = refused
            essential_error = error if essential else None
            if essential:
                self._free_reserve()
                try:
                    self._write(essential)
                except LogUnavailableError as lost:
                    essential_error = lost
                else:
                    essential_error = None
            self._report(essential, essential_error)
            self._report([item for item in batch if not item.essential], error)
        else:
            self._report(batch, None)

    def _write(self, batch: list[_Pending]) -> None:
        if self._failure is not None:
            raise LogUnavailableError(self._failure)
        data = memoryview(b"".join(item.line for item in batch))
        try:
            written = 0
            while written < len(data):
                written += os.write(self._fd, data[written:])
        except OSError as error:
            os.ftruncate(self._fd, self._length)
            raise LogUnavailableError(f"the bill cannot be written: {error.strerror}") from error
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            # After a failed sync the kernel may call lost pages clean: nothing here can be trusted
            # again until a restart has read the file.
            self._failure = f"the bill cannot be synced: {error.strerror}; restart needed"
            raise LogUnavailableError(self._failure) from error
        self._length += len(data)

    def _hold_reserve(self) -> None:
        if self._reserve_held or self._reserve_bytes == 0:
            return
        try:
            fd = os.open(self._reserve_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(fd, 0, self._reserve_bytes)
            finally:
                os.close(fd)
        except OSError as error:
            self._reserve_path.unlink(missing_ok=True)  # half a reserve would only eat the rest
            raise LogUnavailableError(
                f"no {self._reserve_bytes} bytes in reserve for the bill: {error.strerror}"
            ) from error
        self._reserve_held = True

    def _free_reserve(self) -> None:
        self._reserve_path.unlink(missing_ok=True)
        self._reserve_held = False

    def _report(self, items: list[_Pending], error: LogUnavailableError | None) -> None:
        futures = [item.done for item in items if item.done is not None]
        if self._loop is not None and futures and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_resolve, futures, error)


def replay_lines(lines: Iterable[bytes], apply: Callable[[Record], None], *, source: str) -> int:
    """Give every record to ``apply``, in order; returns the length of the part that holds them.

    What follows the last record is a torn tail. Raises LogCorruptError when something unreadable
    stands before a record, or when ``apply`` raises KeyError, TypeError or ValueError.
    """
    good_length = position = 0
    bad_line: int | None = None
    for number, line in enumerate(lines, start=1):
        position += len(line)
        record = _decode(line)
        if record is None:
            bad_line = bad_line or number
            continue
        if bad_line is not None:
            raise LogCorruptError(f"{source}, line {bad_line}: not a record of the bill")
        try:
            apply(record)
        except (KeyError, TypeError, ValueError) as error:
            raise LogCorruptError(f"{source}, line {number}: {error!r}") from error
        good_length = position
    return good_length


def _decode(line: bytes) -> Record | None:
    if not line.endswith(b"\n"):
        return None
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return cast("Record", value) if isinstance(value, dict) and "record" in value else None


def _encode(record: Record) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


def _resolve(futures: list[asyncio.Future[None]], error: LogUnavailableError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
