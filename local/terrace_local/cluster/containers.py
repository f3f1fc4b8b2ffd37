"""Images and containers, through containerd's own client.

Kubernetes' are in the namespace `k8s.io`.
"""

import fcntl
import os
import subprocess
from pathlib import Path

from terrace_local.cluster.errors import ClusterError, NotRunning
from terrace_local.cluster.paths import Paths

__all__ = ["Containers"]


class Containers:
    """containerd as it runs for this cluster."""

    def __init__(self, paths: Paths, binaries: Path) -> None:
        self._paths = paths
        self._ctr = binaries / "ctr"

    def answers(self) -> bool:
        """Whether containerd takes calls."""
        if not self._paths.containerd_socket.is_socket():
            return False
        return self._call("--connect-timeout=2s", "--timeout=5s", "version").returncode == 0

    def images(self) -> set[str]:
        """References of every image on the node."""
        return set(self._checked("images", "ls", "-q").split())

    def has_image(self, reference: str) -> bool:
        return reference in self.images()

    def load_image(self, archive: Path, reference: str) -> None:
        """Import a docker or OCI archive that holds `reference`.

        Raises ClusterError when the archive is damaged or does not hold it, NotRunning without a
        containerd.
        """
        if not archive.is_file():
            raise ClusterError(f"there is no image archive at {archive}")
        # Two commands that load the same image at once would race on its reference.
        self._paths.run.mkdir(parents=True, exist_ok=True)
        with (self._paths.run / "images.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.has_image(reference):
                return
            self._checked("images", "import", "--no-unpack=false", str(archive))
        if not self.has_image(reference):
            raise ClusterError(
                f"{archive} was imported but does not hold {reference}; it holds another reference"
            )

    def end_all(self) -> int:
        """Kill what still runs and delete every container with its snapshot.

        Returns how many containers there were.
        """
        tasks = self._call("tasks", "ls", "-q").stdout.split()
        if tasks:
            self._call("tasks", "rm", "--force", *tasks)
        containers = self._call("containers", "ls", "-q").stdout.split()
        if containers:
            self._call("containers", "rm", *containers)
        sandboxes = [
            line.split()[0]
            for line in self._call("sandboxes", "ls").stdout.splitlines()[1:]
            if line.split()
        ]
        if sandboxes:
            self._call("sandboxes", "rm", "--force", *sandboxes)
        return len(containers)

    def _checked(self, *arguments: str) -> str:
        done = self._call(*arguments)
        if done.returncode:
            if not self.answers():
                raise NotRunning("containerd does not answer; run `terrace up` first")
            raise ClusterError(f"`ctr {' '.join(arguments)}` failed: {done.stderr.strip()[-800:]}")
        return done.stdout

    def _call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = [
            str(self._ctr),
            f"--address={self._paths.containerd_socket}",
            "--namespace=k8s.io",
            *arguments,
        ]
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": "/nonexistent"}
        return subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=600, env=environment
        )
