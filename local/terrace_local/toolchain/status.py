"""What there is already, without making anything."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from terrace_local.toolchain.cache import find_entry, is_present
from terrace_local.toolchain.manifest import MODULES_ROOT, Manifest, Tool, load_manifest
from terrace_local.toolchain.on_path import find_on_path
from terrace_local.toolchain.places import Places, recipe_hash


@dataclass(frozen=True, kw_only=True)
class ToolStatus:
    """One tool of the manifest and where it is.

    `source` is "damaged" for a cache entry that will be made again. `location` is a folder.
    `verified`: its files were compared with their recorded SHA-256; for one on PATH only its
    version is known. `on_request`: no stage needs it, so it may well be missing.
    """

    name: str
    version: str
    binaries: tuple[str, ...]
    source: Literal["path", "downloaded", "built", "damaged", "missing"]
    location: Path | None
    verified: bool
    on_request: bool = False


def status(
    *,
    manifest: Manifest | None = None,
    modules_root: Path = MODULES_ROOT,
    places: Places | None = None,
) -> list[ToolStatus]:
    """Every tool of the manifest, in its order. Nothing is fetched, built or changed."""
    manifest = manifest or load_manifest()
    places = places or Places.from_environment()
    return [
        _status_of(tool, recipe_hash(tool, manifest, modules_root), places)
        for tool in manifest.tools
    ]


def _status_of(tool: Tool, recipe: str, places: Places) -> ToolStatus:
    def told(
        source: Literal["path", "downloaded", "built", "damaged", "missing"],
        location: Path | None,
        *,
        verified: bool = False,
    ) -> ToolStatus:
        return ToolStatus(
            name=tool.name,
            version=tool.version,
            binaries=tool.binaries,
            source=source,
            location=location,
            verified=verified,
            on_request=tool.on_request,
        )

    entry = find_entry(places, tool, recipe)
    if entry is not None:
        return told(entry.source, entry.folder, verified=True)
    on_path = find_on_path(tool, ours=places.root)
    if on_path is not None:
        return told("path", on_path[tool.binaries[0]].parent)
    if is_present(places, tool, recipe):
        return told("damaged", places.entry(tool, recipe))
    return told("missing", None)
