"""The cache of finished tools: an entry is there completely and verified, or it is not there.

An entry is a folder `<name>/<version>-<recipe>/` with the binaries and `entry.json`, which lists
each file's SHA-256. It is made elsewhere, synced to disk and renamed into place. On use it is
hashed again, unless each file still has the size, modification time and inode that it had when
last hashed.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from terrace_local.toolchain.manifest import Tool
from terrace_local.toolchain.places import Places

ENTRY_FILE = "entry.json"
STAMP_FILE = "stamp.json"

Source = Literal["downloaded", "built"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A finished, verified tool: its folder, its source, and binary -> SHA-256."""

    folder: Path
    source: Source
    origin: str
    files: Mapping[str, str]


def find_entry(places: Places, tool: Tool, recipe: str) -> Entry | None:
    """The verified entry of a tool, or None if there is none or it is damaged."""
    folder = places.entry(tool, recipe)
    try:
        document = json.loads((folder / ENTRY_FILE).read_bytes())
        entry = Entry(
            folder=folder,
            source=document["source"],
            origin=document["origin"],
            files=document["files"],
        )
        if set(entry.files) != set(tool.binaries) or document["recipe"] != recipe:
            return None
        stamps = _stamps(folder, entry.files)
        if stamps is None:
            return None
        if _read_stamps(folder) != stamps:
            if any(sha256_of(folder / name) != digest for name, digest in entry.files.items()):
                return None
            write_atomically(folder / STAMP_FILE, stamps)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return entry


def is_present(places: Places, tool: Tool, recipe: str) -> bool:
    """Whether anything lies where the entry belongs, damaged or not."""
    return places.entry(tool, recipe).exists()


def publish(
    places: Places,
    tool: Tool,
    recipe: str,
    *,
    source: Source,
    origin: str,
    files: Mapping[str, Path],
    work: Path,
) -> Entry:
    """Turn finished files into the tool's entry; whatever lay in its place goes. Needs its lock."""
    staged = work / f"publish-{tool.name}"
    staged.mkdir()
    digests: dict[str, str] = {}
    for name, file in files.items():
        target = staged / name
        file.rename(target)
        target.chmod(0o755)
        _sync(target)
        digests[name] = sha256_of(target)
    document = {
        "name": tool.name,
        "version": tool.version,
        "recipe": recipe,
        "source": source,
        "origin": origin,
        "files": digests,
    }
    write_atomically(staged / ENTRY_FILE, document)
    write_atomically(staged / STAMP_FILE, _stamps(staged, digests))
    _sync(staged)
    folder = places.entry(tool, recipe)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        folder.rename(work / f"replaced-{tool.name}")
    staged.rename(folder)
    _sync(folder.parent)
    return Entry(folder=folder, source=source, origin=origin, files=digests)


@contextmanager
def work_folder(places: Places) -> Iterator[Path]:
    """A folder of this process's own for half-made things; those of dead processes are removed."""
    places.work.mkdir(parents=True, exist_ok=True)
    for leftover in places.work.iterdir():
        if not _owner_lives(leftover.name):
            _remove_tree(leftover)
    own = places.work / f"{os.getpid()}-{_start_time(os.getpid())}-{uuid4().hex[:8]}"
    own.mkdir()
    try:
        yield own
    finally:
        _remove_tree(own)


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def write_atomically(file: Path, document: object) -> None:
    """Replace a JSON file so that a reader sees the old one or the new one, whole."""
    draft = file.with_name(f".{file.name}.{uuid4().hex[:8]}")
    draft.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    _sync(draft)
    draft.rename(file)


def _stamps(folder: Path, names: Mapping[str, str]) -> dict[str, list[int]] | None:
    stamps: dict[str, list[int]] = {}
    for name in names:
        stat = (folder / name).lstat()
        if stat.st_mode & 0o170111 != 0o100111:  # a regular file that all may execute
            return None
        stamps[name] = [stat.st_size, stat.st_mtime_ns, stat.st_ino]
    return stamps


def _read_stamps(folder: Path) -> Any:
    try:
        return json.loads((folder / STAMP_FILE).read_bytes())
    except (OSError, ValueError):
        return None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _owner_lives(name: str) -> bool:
    pid, _, rest = name.partition("-")
    started, _, _ = rest.partition("-")
    return pid.isdigit() and _start_time(int(pid)) == started


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which a live process started: with the pid it names one process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]


def _remove_tree(folder: Path) -> None:
    # Two processes may clean up at once.
    shutil.rmtree(folder, ignore_errors=True)
