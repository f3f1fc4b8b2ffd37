"""Files in the engine directory that are either complete or not there."""

import os
from pathlib import Path


def make_private_directory(directory: Path) -> None:
    """`directory` with mode 0700, ours. Raises PermissionError if it is somebody else's."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{directory} belongs to user {directory.stat().st_uid}, not to this process's "
            f"({os.getuid()}); mount the shared volume at {directory.parent} instead"
        )
    directory.chmod(0o700)


def write_private(file: Path, content: str) -> None:
    """`content` in `file`, mode 0600; a reader sees the old file or the new one, never a part."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        part.rename(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
