"""What the cluster offers to others: images by name, and `substrate.json` (docs/contracts.md)."""

from collections.abc import Mapping
from pathlib import Path

from terrace_local.cluster.containers import Containers
from terrace_local.cluster.errors import NotRunning
from terrace_local.cluster.files import read_json, write_json
from terrace_local.cluster.paths import NODE_ADDRESS, NODE_NAME, Paths

__all__ = ["has_image", "load_image", "write_substrate"]


def load_image(archive: Path, ref: str, *, paths: Paths | None = None) -> None:
    """Import a docker or OCI archive that holds `ref` into the node; nothing to do when the node
    has it.

    Raises NotRunning without a cluster, ClusterError when the archive is damaged or holds something
    else.
    """
    _containers(paths).load_image(archive, ref)


def has_image(ref: str, *, paths: Paths | None = None) -> bool:
    """Whether the node has the image. Raises NotRunning without a cluster."""
    return _containers(paths).has_image(ref)


def write_substrate(images: Mapping[str, str], *, paths: Paths | None = None) -> Path:
    """Publish `substrate.json`, which the blueprints read. Replaced whole; returns its path."""
    paths = paths or Paths.default()
    identifier = (read_json(paths.cluster) or {}).get("identifier")
    if identifier is None:
        raise NotRunning("there is no cluster to describe; run `terrace up` first")
    write_json(
        paths.substrate,
        {
            "version": 1,
            "kubeconfig": str(paths.kubeconfig),
            "cluster_identifier": identifier,
            "node_name": NODE_NAME,
            "node_address": NODE_ADDRESS,
            "volumes_root": str(paths.volumes),
            "images": dict(sorted(images.items())),
            "isolation": "runc",
        },
    )
    return paths.substrate


def _containers(paths: Paths | None) -> Containers:
    paths = paths or Paths.default()
    binaries = (read_json(paths.cluster) or {}).get("toolchain_bin")
    if binaries is None:
        raise NotRunning("there is no cluster on this machine; run `terrace up` first")
    return Containers(paths, Path(binaries))
