"""Publishers' checksum files, and the memory of what they said first."""

import json
import re
from pathlib import Path
from typing import Any, Literal

from terrace_local.toolchain.cache import write_atomically
from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.locks import locked

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def parse_checksum(text: str, form: Literal["sha256sum", "bare"], file_name: str) -> str:
    """The SHA-256 that a publisher's checksum file gives for a file, in lower case.

    `bare`: the file is one hash. `sha256sum`: lines of a hash, blanks and a file name (with an
    optional `*`, and possibly a folder before it). Raises ValueError if there is none for the file.
    """
    if form == "bare":
        words = text.split()
        if len(words) != 1 or not _SHA256.fullmatch(words[0]):
            raise ValueError(f"the checksum file of {file_name} is not one SHA-256")
        return words[0].lower()
    for line in text.splitlines():
        digest, _, name = line.strip().partition(" ")
        if name.strip().removeprefix("*").rpartition("/")[2] == file_name:
            if not _SHA256.fullmatch(digest):
                raise ValueError(f"the checksum file gives {digest[:80]!r} for {file_name}")
            return digest.lower()
    raise ValueError(f"the checksum file has no line for {file_name}")


def recall_checksum(record: Path, url: str) -> str | None:
    """The checksum recorded when `url` was first used, if it was."""
    return _read(record).get(url)


def record_checksum(record: Path, url: str, digest: str) -> None:
    """Remember a checksum at first use. Raises `ToolchainError` if a different one was recorded."""
    with locked(record.with_name(f".{record.name}.lock")):
        known = _read(record)
        if known.setdefault(url, digest) != digest:
            raise ToolchainError(changed_checksum(record, url, known[url], digest))
        write_atomically(record, known)


def changed_checksum(record: Path, url: str, before: str, now: str) -> str:
    """What to tell a person when a published file is not what it was."""
    return (
        f"the publisher's checksum of {url} has changed since it was first used here "
        f"(recorded {before}, now {now}); a released file should never change, so it is refused. "
        f"If the publisher confirms the change, remove the line from {record}"
    )


def _read(record: Path) -> dict[str, str]:
    try:
        document: Any = json.loads(record.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        # Forgetting would turn "first use" into "any use".
        raise ToolchainError(
            f"{record} is damaged ({error}); restore it, or remove it to trust anew"
        ) from error
    return dict(document)
