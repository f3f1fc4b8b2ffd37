"""What Pulumi's Kubernetes provider leaves in the folder for temporary files.

At every start it writes its kubeconfig, with the client's key, to a new `kubeconfig<digits>` there
(for Helm) and never removes it. `terrace up` gives it a folder of its own; these come from
`pulumi` by hand.
"""

import contextlib
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

from terrace_local.cluster.paths import API_URL, NODE_NAME

__all__ = ["remove_kubeconfigs"]

_NAME = re.compile(r"kubeconfig\d+")
_LONGEST = 64 * 1024


def remove_kubeconfigs(folders: Iterable[Path] | None = None) -> list[Path]:
    """Remove those of this machine's cluster, and no others. Returns what was removed.

    Looked for in `TMPDIR` and `/tmp`, unless `folders` says where.
    """
    if folders is None:
        folders = {Path(os.environ.get("TMPDIR") or "/tmp"), Path("/tmp")}  # noqa: S108
    removed = []
    for folder in folders:
        for path in sorted(folder.glob("kubeconfig*")):
            if _NAME.fullmatch(path.name) and _is_ours(path):
                with contextlib.suppress(OSError):
                    path.unlink()
                    removed.append(path)
    return removed


def _is_ours(path: Path) -> bool:
    try:
        # Anybody may put anything there, a pipe or a link too.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return False
            lines = {line.strip() for line in file.read(_LONGEST).decode().splitlines()}
    except (OSError, UnicodeDecodeError):
        return False
    # Not the context: people give it a name of their own.
    return {f"server: {API_URL}", f"name: {NODE_NAME}"} <= lines
