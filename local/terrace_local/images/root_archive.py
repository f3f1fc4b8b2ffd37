"""A docker-archive of one layer, written by hand around a tar of a root file system."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_root_archive(root_tar: Path, archive: Path, reference: str) -> None:
    """An image whose only layer is `root_tar`, unchanged."""
    with root_tar.open("rb") as stream:
        layer = hashlib.file_digest(stream, "sha256").hexdigest()
    machine = platform.machine()
    config = {
        "architecture": _ARCHITECTURES.get(machine, machine),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer}"]},
        # One entry per layer: without it buildah refuses to commit on top of this image.
        "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "mmdebstrap"}],
    }
    content = json.dumps(config, sort_keys=True).encode()
    name = f"{hashlib.sha256(content).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": [reference], "Layers": [f"{layer}.tar"]}]
    with tarfile.open(archive, "w") as out:
        _add(out, name, content)
        _add(out, "manifest.json", json.dumps(manifest).encode())
        member = tarfile.TarInfo(f"{layer}.tar")
        member.size = root_tar.stat().st_size
        with root_tar.open("rb") as stream:
            out.addfile(member, stream)


def _add(out: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    out.addfile(member, io.BytesIO(content))
