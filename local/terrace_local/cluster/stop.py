"""`down`: the lock, the holder, the order, and what is said at the end."""

import time
from collections.abc import Callable
from pathlib import Path

from terrace_local.cluster import cgroups, network
from terrace_local.cluster.lifecycle import clone_path, require_root
from terrace_local.cluster.lock import machine_lock, refuse_other_command, refuse_other_holder
from terrace_local.cluster.paths import BRIDGE, NODE_LINK, Paths
from terrace_local.cluster.processes import ProcessTable
from terrace_local.cluster.teardown import DownReport, clear_runtime, remove_state, sizes

__all__ = ["down", "may_go_down"]


def may_go_down(*, clone: Path | None = None, paths: Paths | None = None) -> None:
    """Return when `down` would not refuse right now; changes nothing, so it may come before a
    question.

    Raises PreflightFailed without root, HeldByAnother as `down` does.
    """
    paths, clone = paths or Paths.default(), clone or clone_path()
    require_root()
    refuse_other_command(paths, clone=clone)
    refuse_other_holder(
        paths, ProcessTable(paths.processes, paths.log), clone=clone, allow_orphan=True
    )


def down(
    *,
    keep_data: bool,
    progress: Callable[[str], None],
    clone: Path | None = None,
    paths: Paths | None = None,
) -> DownReport:
    """Stop the cluster and put the machine back. With `keep_data`, the next `up` resumes the same
    cluster.

    Does nothing, and says so with an empty report, when there is nothing. Raises HeldByAnother for
    a cluster that lives and belongs to another clone that still exists.
    """
    paths, clone, began = paths or Paths.default(), clone or clone_path(), time.monotonic()
    require_root()
    if (
        not paths.state.exists()
        and not cgroups.members()
        and not {BRIDGE, NODE_LINK} & network.links().keys()
    ):
        return DownReport()
    with machine_lock(paths, clone=clone, command="down", progress=progress):
        table = ProcessTable(paths.processes, paths.log)
        refuse_other_holder(paths, table, clone=clone, allow_orphan=True)
        cleared = clear_runtime(paths, table, progress=progress)
        data = sizes(paths)
        left = remove_state(paths, keep_data=keep_data, progress=progress)
        return DownReport(
            stopped=tuple(dict.fromkeys(cleared.stopped)),
            containers=cleared.containers,
            mounts=cleared.mounts,
            removed=tuple(cleared.removed),
            data=data,
            data_kept=keep_data,
            left=(*cleared.left, *left),
            seconds=time.monotonic() - began,
        )
