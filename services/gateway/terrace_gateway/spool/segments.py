"""Segment files of one spool directory: locked, preallocated, synced, deleted when shipped.

Room is taken by ``posix_fallocate`` before a record is accepted, so that later writes into it need
none. (A copy-on-write file system may still refuse them; put the spool on ext4 or XFS.)
"""

import fcntl
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

LOCK_NAME = "lock"
EXTEND_BYTES = 1024 * 1024
_NAME = re.compile(r"(\d{12})-(w-[0-9a-f]{16})\.spool")
_ASIDE = re.compile(r"\d{12}-(w-[0-9a-f]{16})\.damaged")


class SpoolLockedError(RuntimeError):
    """Another process has this spool directory."""


@dataclass(slots=True)
class Segment:
    """One open file. Offsets and sizes in bytes."""

    number: int
    writer: str
    path: Path
    fd: int
    written: int = 0
    durable: int = 0
    allocated: int = 0

    def write(self, data: bytes) -> None:
        """Append at ``written``. Raises ``OSError``; ``written`` has not moved then."""
        view, offset = memoryview(data), self.written
        while view:
            count = os.pwrite(self.fd, view, offset)
            view, offset = view[count:], offset + count
        self.written = offset

    def sync(self) -> None:
        """Make everything written durable. Raises ``OSError``."""
        os.fdatasync(self.fd)
        self.durable = self.written

    def grow(self, size: int) -> None:
        """Allocate up to ``size`` bytes. Raises ``OSError``; nothing is lost then."""
        if size > self.allocated:
            os.posix_fallocate(self.fd, self.allocated, size - self.allocated)
            self.allocated = size

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` durable bytes from ``offset``."""
        return os.pread(self.fd, max(0, min(size, self.durable - offset)), offset)

    def give_back(self) -> None:
        """Free what was allocated and not used."""
        os.ftruncate(self.fd, self.written)
        self.allocated = self.written

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)


@dataclass
class SpoolDirectory:
    """The files of a directory, under its lock. One changes them at a time."""

    path: Path
    segments: dict[int, Segment] = field(default_factory=dict[int, Segment])
    _lock: int = -1

    def open(self) -> None:
        """Take the lock and open what is there. Raises ``SpoolLockedError``, ``OSError``."""
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = -1
            raise SpoolLockedError(
                f"{self.path}: another process writes this spool; each replica needs its own volume"
            ) from None
        for item in sorted(self.path.iterdir()):
            if (match := _NAME.fullmatch(item.name)) is None:
                continue
            fd = os.open(item, os.O_RDWR | os.O_CLOEXEC)
            size = os.fstat(fd).st_size
            number = int(match[1])
            self.segments[number] = Segment(number, match[2], item, fd, size, size, size)

    def create(self, writer: str, size: int) -> Segment:
        """A new file of ``size`` bytes, durable in its directory. Raises ``OSError``."""
        number = max(self.segments, default=0) + 1
        path = self.path / f"{number:012d}-{writer}.spool"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        segment = Segment(number, writer, path, fd)
        try:
            segment.grow(size)
            os.fsync(fd)
            self.sync()
        except OSError:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self.segments[number] = segment
        return segment

    def remove(self, segment: Segment) -> None:
        """Delete a file whose records are elsewhere by now."""
        segment.path.unlink(missing_ok=True)
        del self.segments[segment.number]
        segment.close()
        self.sync()

    def set_aside(self, segment: Segment) -> None:
        """Keep a damaged file for people, out of the spool's way."""
        segment.path.rename(segment.path.with_suffix(".damaged"))
        del self.segments[segment.number]
        segment.close()
        self.sync()

    def damaged_writers(self) -> frozenset[str]:
        """Writers of whom a damaged file was set aside, by this process or one before."""
        found = (_ASIDE.fullmatch(path.name) for path in self.path.glob("*.damaged"))
        return frozenset(match[1] for match in found if match is not None)

    @property
    def lock(self) -> int:
        """The lock file's descriptor."""
        return self._lock

    @property
    def allocated(self) -> int:
        """Bytes on the disk."""
        return sum(segment.allocated for segment in list(self.segments.values()))

    def sync(self) -> None:
        """Make names durable."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close all files and release the lock."""
        for segment in self.segments.values():
            segment.close()
        self.segments.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
