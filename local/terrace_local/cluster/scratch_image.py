"""An image from one static binary, as a docker-archive: no builder, no base, the same bytes."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["image_reference", "write_scratch_image"]

EPOCH = "1970-01-01T00:00:00Z"


def image_reference(
    binary: Path, name: str, *, arguments: Sequence[str] = (), user: str = "65532:65532"
) -> str:
    """`terrace.local/<name>:<16 hex of the content>`."""
    with binary.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(json.dumps([name, list(arguments), user]).encode())
    return f"terrace.local/{name}:{digest.hexdigest()[:16]}"


def write_scratch_image(
    binary: Path,
    archive: Path,
    reference: str,
    *,
    arguments: Sequence[str] = (),
    user: str = "65532:65532",
) -> None:
    """Write `archive` with an image that holds `binary` as /<its name> and runs it as `user`."""
    layer = _tar([(binary.name, binary.read_bytes(), 0o755)])
    layer_digest = hashlib.sha256(layer).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": EPOCH,
            "config": {
                "Entrypoint": [f"/{binary.name}", *arguments],
                "User": user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{layer_digest}"]},
            # One entry per layer, or tools that count them against each other refuse the image.
            "history": [{"created": EPOCH, "created_by": f"terrace: {binary.name}"}],
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    layer_name = f"{layer_digest}/layer.tar"
    manifest = json.dumps(
        [{"Config": config_name, "RepoTags": [reference], "Layers": [layer_name]}]
    ).encode()
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.write_bytes(
        _tar(
            [
                ("manifest.json", manifest, 0o644),
                (config_name, config, 0o644),
                (layer_name, layer, 0o644),
            ]
        )
    )


def _tar(members: Sequence[tuple[str, bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content, mode in members:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), mode
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
