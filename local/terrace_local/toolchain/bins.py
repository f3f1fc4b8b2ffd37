"""One folder with all binaries of a stage, to be put on PATH."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.places import Places


@dataclass(frozen=True, kw_only=True)
class Binary:
    """One program: `file` is where it really lies, `sha256` is empty for one found on PATH."""

    name: str
    version: str
    source: Literal["path", "downloaded", "built"]
    file: Path
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The binaries of a stage: verified, and all in `bin_dir`.

    The folder's name is a hash of its content: the same binaries are always the same folder, and
    what runs from it is never changed under its feet.
    """

    bin_dir: Path
    binaries: Mapping[str, Binary]

    def path(self, name: str) -> Path:
        """The program `name` in `bin_dir`. Raises `ToolchainError` naming those there are."""
        if name not in self.binaries:
            known = ", ".join(sorted(self.binaries))
            raise ToolchainError(f"no binary {name!r} in this toolchain; there are: {known}")
        return self.bin_dir / name


def gather(places: Places, binaries: Mapping[str, Binary]) -> Toolchain:
    """Link binaries into the folder of exactly this set, repairing links that are gone or stale."""
    digest = hashlib.sha256()
    for name, binary in sorted(binaries.items()):
        digest.update(f"{name}\0{binary.sha256 or binary.file}\n".encode())
    folder = places.bins / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for name, binary in binaries.items():
        link = folder / name
        if not link.exists() or not link.samefile(binary.file):
            _link(binary, link)
    for stray in folder.iterdir():
        if stray.name not in binaries:
            stray.unlink(missing_ok=True)
    return Toolchain(bin_dir=folder, binaries=dict(binaries))


def _link(binary: Binary, link: Path) -> None:
    draft = link.with_name(f".{link.name}.{uuid4().hex[:8]}")
    if binary.source == "path":
        draft.symlink_to(binary.file)
    else:
        # Hard, not symbolic: pulumi looks for its language hosts beside the file it was run as.
        os.link(binary.file, draft)
    draft.replace(link)
