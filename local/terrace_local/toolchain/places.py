"""Where the toolchain keeps things, and how a recipe becomes a folder name."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from terrace_local.toolchain.manifest import Manifest, Tool


@dataclass(frozen=True, kw_only=True)
class Places:
    """Folders below the cache root (`TERRACE_CACHE_DIR`, default `~/.cache/terrace`)."""

    root: Path

    @classmethod
    def from_environment(cls) -> "Places":
        given = os.environ.get("TERRACE_CACHE_DIR")
        return cls(root=Path(given).absolute() if given else Path.home() / ".cache" / "terrace")

    @property
    def entries(self) -> Path:
        return self.root / "toolchain"

    @property
    def work(self) -> Path:
        """Half-made things; the same file system as the entries, so that a rename publishes."""
        return self.entries / ".work"

    @property
    def locks(self) -> Path:
        return self.entries / ".locks"

    @property
    def logs(self) -> Path:
        return self.root / "log" / "toolchain"

    @property
    def checksums(self) -> Path:
        return self.entries / "checksums.json"

    @property
    def bins(self) -> Path:
        return self.root / "bin"

    def entry(self, tool: Tool, recipe: str) -> Path:
        return self.entries / tool.name / f"{tool.version}-{recipe}"


def recipe_hash(tool: Tool, manifest: Manifest, modules_root: Path) -> str:
    """12 hex digits over all that decides what a tool's binaries are.

    That is its manifest entry, how its module is compiled, the module's go.mod and go.sum, and for
    packages of our own their sources. The version of Go is left out: an update of it must not
    throw away half an hour of work.
    """
    digest = hashlib.sha256(_canonical(tool, exclude={"on_path", "since_stage", "on_request"}))
    build = tool.build
    if build is not None:
        module = manifest.modules[build.module]
        digest.update(_canonical(module))
        folders = {build.module, *(file.resolved_in for file in build.copied.values())}
        sources = [modules_root / name / part for name in folders for part in ("go.mod", "go.sum")]
        for package in build.packages.values():
            if package.startswith("."):
                sources += (modules_root / build.module / package).glob("*.go")
        for source in sorted(sources):
            digest.update(str(source.relative_to(modules_root)).encode() + b"\0")
            digest.update(source.read_bytes() if source.exists() else b"(missing)")
    return digest.hexdigest()[:12]


def _canonical(model: BaseModel, exclude: set[str] | None = None) -> bytes:
    # Without defaults, so that a new optional key in the schema changes no recipe.
    document = model.model_dump(mode="json", exclude=exclude, exclude_defaults=True)
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
