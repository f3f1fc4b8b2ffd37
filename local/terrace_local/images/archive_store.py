"""Image archives on disk: complete and as recorded, or not there.

`<name>-<tag>.tar` is an archive that `docker load` and `ctr image import` read; beside it
`<name>-<tag>.json` records its SHA-256. The record is written last: an archive without one, or
that differs from it, does not exist.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from terrace_local.toolchain.locks import locked

_KEPT_PER_IMAGE = 3


class ArchiveStore:
    """The folder of archives. Several processes may use it at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str, tag: str) -> Path:
        return self._folder / f"{name}-{tag}.tar"

    def digest(self, name: str, tag: str, *, read_all: bool = False) -> str | None:
        """The archive's SHA-256 if it is complete and unchanged, else None.

        An archive whose inode still looks as it did when it was hashed is not read again, unless
        `read_all`.
        """
        archive = self.path(name, tag)
        record = self._record(archive)
        try:
            seen = _stamp(archive)
        except OSError:
            return None
        if record is None or record.get("size") != seen["size"]:
            return None
        recorded = record.get("sha256")
        if not isinstance(recorded, str):
            return None
        if not read_all and record.get("stamp") == seen:
            return recorded
        if sha256(archive) != recorded:
            return None
        if record.get("stamp") != seen:
            self._write_record(archive, recorded, seen)
        return recorded

    @contextmanager
    def lock(self, name: str, *, waiting: Callable[[str], None]) -> Generator[None]:
        """One builder per image; dropped by the kernel however its holder dies."""
        with locked(self._folder / ".locks" / f"{name}.lock", waiting=waiting):
            yield

    def part(self, name: str, tag: str) -> Path:
        """Where to write a new archive. Call with the lock held: parts of the dead are removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob(f".{name}-*.part"):
            left.unlink(missing_ok=True)
        return self._folder / f".{name}-{tag}.{os.getpid()}.part"

    def publish(self, part: Path, name: str, tag: str) -> str:
        """Gives a complete part its name. Returns its SHA-256. Call with the lock held."""
        archive = self.path(name, tag)
        digest = sha256(part)
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        archive.with_suffix(".json").unlink(missing_ok=True)
        part.rename(archive)
        self._write_record(archive, digest, _stamp(archive))
        self._forget_old(name, keep=archive)
        return digest

    def discard(self, name: str, tag: str) -> None:
        """Removes an archive that turned out to be wrong."""
        archive = self.path(name, tag)
        archive.with_suffix(".json").unlink(missing_ok=True)
        archive.unlink(missing_ok=True)

    def _forget_old(self, name: str, *, keep: Path) -> None:
        archives = [file for file in self._folder.glob(f"{name}-*.tar") if _belongs(file, name)]
        archives.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        for old in archives[_KEPT_PER_IMAGE:]:
            if old != keep:
                old.with_suffix(".json").unlink(missing_ok=True)
                old.unlink(missing_ok=True)

    def _record(self, archive: Path) -> dict[str, Any] | None:
        try:
            record = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def _write_record(self, archive: Path, digest: str, stamp: dict[str, int]) -> None:
        record = {"sha256": digest, "size": stamp["size"], "stamp": stamp}
        part = archive.with_suffix(f".json.{os.getpid()}.part")
        try:
            part.write_text(json.dumps(record, sort_keys=True) + "\n", encoding="utf-8")
            part.rename(archive.with_suffix(".json"))
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()


def sha256(file: Path) -> str:
    """64 hex digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _belongs(archive: Path, name: str) -> bool:
    # "gateway-<tag>" and not "gateway-admin-<tag>".
    return "-" not in archive.stem.removeprefix(f"{name}-")


def _stamp(file: Path) -> dict[str, int]:
    status = file.stat()
    return {
        "size": status.st_size,
        "inode": status.st_ino,
        "modified": status.st_mtime_ns,
        "changed": status.st_ctime_ns,
    }
