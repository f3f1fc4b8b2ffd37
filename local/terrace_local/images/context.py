"""An image's inputs: hashed, and laid out as the build's context.

The hash is over exactly the files that the build gets to see, so a file that is not declared
can't get into an image, and one that did can't change without a new tag.
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from terrace_local.images.catalogue import ImageSpec
from terrace_local.images.errors import ImageError

_LEFT_OUT = ("__pycache__", ".pytest_cache", ".ruff_cache", ".hypothesis")
_LEFT_OUT_ENDINGS = (".pyc", ".pyo", ".egg-info", ".swp", "~")
RECIPE = 1
"""Changes when the builder itself changes what is in an image."""


def input_digest(spec: ImageSpec, root: Path, *, base: str) -> str:
    """SHA-256 (64 hex) over all that decides the image: its files, arguments, labels and base."""
    digest = hashlib.sha256()
    head = {
        "recipe": RECIPE,
        "name": spec.name,
        "arguments": dict(spec.arguments),
        "version": spec.version,
        "licenses": spec.licenses,
        "base": base,
    }
    digest.update(json.dumps(head, sort_keys=True).encode())
    for path, file in _files(spec, root):
        executable = bool(file.stat().st_mode & 0o100)
        content = file.read_bytes()
        digest.update(f"\0{path}\0{executable}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def lay_out(spec: ImageSpec, root: Path, folder: Path) -> Path:
    """Copies the inputs below `folder` under their repository paths; returns the Dockerfile."""
    for path, file in _files(spec, root):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        # Whoever's umask made the checkout: the same modes in every image.
        target.chmod(0o755 if file.stat().st_mode & 0o100 else 0o644)
    return folder / spec.dockerfile


def _files(spec: ImageSpec, root: Path) -> list[tuple[str, Path]]:
    found: dict[str, Path] = {}
    for declared in (spec.dockerfile, *spec.inputs):
        start = root / declared
        if not start.exists():
            raise ImageError(f"image {spec.name}: its input {declared} does not exist in {root}")
        for file in _walk(start):
            found[file.relative_to(root).as_posix()] = file
    return sorted(found.items())


def _walk(start: Path) -> Iterator[Path]:
    if start.name in _LEFT_OUT or start.name.endswith(_LEFT_OUT_ENDINGS):
        return
    if start.is_symlink():
        raise ImageError(f"{start} is a link; images are built from plain files")
    if start.is_dir():
        for child in start.iterdir():
            yield from _walk(child)
    elif start.is_file():
        yield start
