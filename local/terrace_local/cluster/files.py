"""Writing state that survives a kill at any instruction: whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["read_json", "write_file", "write_json"]


def write_file(path: Path, content: str | bytes, *, mode: int = 0o644) -> bool:
    """Replace `path` atomically and durably.

    Returns False, touching nothing, when it already holds `content`.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if path.read_bytes() == data and path.stat().st_mode & 0o777 == mode:
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return True


def write_json(path: Path, value: Any, *, mode: int = 0o644) -> bool:
    """`write_file` with readable JSON."""
    return write_file(path, json.dumps(value, indent=1) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when the file is absent or is not a JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return value if isinstance(value, dict) else None
