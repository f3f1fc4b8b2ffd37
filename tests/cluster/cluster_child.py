"""`cluster_child.py up|down TOOLCHAIN STATE RUN`: a call in its own process, to kill or to race."""

import subprocess
import sys
from pathlib import Path

from terrace_local import cluster


def start(what: str, binaries: Path, paths: cluster.Paths) -> subprocess.Popen[str]:
    """Begin the call; what it says is on its stdout."""
    argv = [sys.executable, __file__, what, str(binaries), str(paths.state), str(paths.run)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


if __name__ == "__main__":
    what, binaries, state, run = sys.argv[1:]
    if what == "up":
        cluster.up(Path(binaries), progress=print, paths=cluster.Paths(Path(state), Path(run)))
    else:
        cluster.down(keep_data=False, progress=print, paths=cluster.Paths(Path(state), Path(run)))
