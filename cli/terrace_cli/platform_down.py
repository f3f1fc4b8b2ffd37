"""`terrace down`: says what data goes, stops what runs for Terrace, and leaves nothing."""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from terrace_cli.local_backend import refuse_to_delete_other_stacks
from terrace_cli.output import Progress, describe_bytes
from terrace_cli.places import endpoints_file, exclusive_use, repository, state_directory
from terrace_local import cluster

# What people call the data in each volume; a volume that is not listed goes by its own name.
_KNOWN_VOLUMES = {
    "postgres": "the ledger and the keys (Postgres)",
    "gateway-spool": "what the gateway has not yet written to the ledger (spools)",
    "model-simulator": "the simulator's own bill",
    "prometheus": "the metrics (Prometheus)",
}


@dataclass(frozen=True, kw_only=True)
class Holding:
    """One body of data that `down` removes or keeps."""

    what: str
    path: Path
    bytes: int


def holdings() -> list[Holding]:
    """The data on this machine, largest meaning first: volumes, cluster state, Pulumi state."""
    state = state_directory()
    found = []
    volumes = state / "volumes"
    for volume in sorted(volumes.iterdir()) if volumes.is_dir() else ():
        name = next(
            (text for key, text in _KNOWN_VOLUMES.items() if key in volume.name), volume.name
        )
        found.append(Holding(what=name, path=volume, bytes=_size(volume)))
    for folder, what in (
        ("etcd", "the cluster's objects and Secrets (etcd)"),
        ("pulumi", "Pulumi's state of the local stack"),
    ):
        if (state / folder).is_dir():
            found.append(Holding(what=what, path=state / folder, bytes=_size(state / folder)))
    return found


def describe_loss(found: list[Holding], *, keep_data: bool) -> str:
    """What goes and what stays, for people, before it happens."""
    if not found:
        return "There is no data of Terrace on this machine."
    head = (
        "This data stays for the next `terrace up`:" if keep_data else "This data will be deleted:"
    )
    lines = [f"  {describe_bytes(item.bytes):>10}  {item.what}  {item.path}" for item in found]
    tail = "Stays: the built binaries and images in the cache (`~/.cache/terrace`)."
    return "\n".join([head, *lines, tail])


def check_down(*, keep_data: bool) -> None:
    """Return when nothing stands against it; changes nothing.

    Raises HeldByAnother for another clone's cluster, PreflightFailed without root, and CliError
    when data would go that is not of this machine: the state of stacks elsewhere.
    """
    clone = repository()
    cluster.may_go_down(clone=clone)
    if not keep_data:
        refuse_to_delete_other_stacks(clone)


def take_down(progress: Progress, *, keep_data: bool) -> cluster.DownReport:
    """Stop the cluster and remove what it made. Raises as `check_down` does."""
    clone = repository()
    with exclusive_use(
        clone,
        on_wait=lambda: progress.say("down", "another terrace works in this clone; waiting for it"),
    ):
        # Once more: between the question and the answer somebody may have brought up a stack.
        check_down(keep_data=keep_data)
        report = cluster.down(
            keep_data=keep_data, clone=clone, progress=lambda text: progress.say("down", text)
        )
        endpoints_file().unlink(missing_ok=True)
    return report


def _size(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            # Postgres removes files while they are counted.
            with contextlib.suppress(OSError):
                total += Path(directory, name).lstat().st_size
    return total
