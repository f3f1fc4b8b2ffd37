"""Starting parts and waiting for what they do; a step that a part leaves unanswered is repeated."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from terrace_local.cluster.api import Api
from terrace_local.cluster.containers import Containers
from terrace_local.cluster.errors import ClusterError, StartTimeout
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.processes import Process, ProcessTable
from terrace_local.cluster.scratch_image import write_scratch_image

__all__ = ["IMAGES", "Progress", "Starter"]

Progress = Callable[[str], None]
START_SECONDS = 90.0
IMAGES = {"pause": (), "coredns": ()}


class Starter:
    """Starts parts in the order of their needs and waits until each does its work."""

    def __init__(
        self, paths: Paths, table: ProcessTable, processes: dict[str, Process], progress: Progress
    ) -> None:
        self._paths = paths
        self._table = table
        self._processes = processes
        self._progress = progress
        self.started: list[str] = []

    def start(self, *names: str) -> None:
        fresh = [name for name in names if self._table.ensure(self._processes[name])]
        if fresh:
            self._progress(f"started {', '.join(fresh)}")
        self.started += fresh

    def start_control_plane(
        self, containers: Containers, binaries: Path, references: dict[str, str]
    ) -> None:
        """Everything up to a ready API server; the images are loaded meanwhile."""
        self.start("etcd", "containerd")
        with ThreadPoolExecutor(max_workers=1) as pool:
            images = pool.submit(self._load_own_images, containers, binaries, references)
            # The API server waits for its store by itself.
            self.start("kube-apiserver")
            with Api(self._paths) as api:
                self.wait("kube-apiserver", "the API server to be ready", api.not_ready)
            images.result()
        # The sandbox image must be there before the kubelet makes its first pod.
        self.start("kube-controller-manager", "kube-scheduler", "kubelet")

    def _load_own_images(
        self, containers: Containers, binaries: Path, references: dict[str, str]
    ) -> None:
        self.wait(
            "containerd",
            "containerd to answer",
            lambda: None if containers.answers() else "no answer on its socket",
        )
        present = containers.images()
        for name, reference in references.items():
            if reference in present:
                continue
            archive = self._paths.run / f"{name}.tar"
            write_scratch_image(binaries / name, archive, reference, arguments=IMAGES[name])
            containers.load_image(archive, reference)
            archive.unlink()

    def wait(
        self,
        name: str,
        what: str,
        problem: Callable[[], str | None],
        seconds: float = START_SECONDS,
        *,
        again: type[ClusterError] = ClusterError,
    ) -> None:
        """Wait until `problem` has none, or until a step that may be repeated has been taken.

        What it raises of the kind `again` is a problem too; any other error goes through. Raises
        StartTimeout when `name` ends or `seconds` pass.
        """
        deadline = time.monotonic() + seconds
        told = False
        while True:
            try:
                said = problem()
            except again as error:
                said = str(error)
            if said is None:
                return
            self.require_alive(name)
            if time.monotonic() > deadline:
                log, tail = self._table.log_path(name), self._table.tail(name)
                raise StartTimeout(
                    f"waited {seconds:.0f} s for {what}: {said}\n  {name} says ({log}):\n{tail}"
                )
            if not told:
                self._progress(f"waiting for {what}")
                told = True
            time.sleep(0.2)

    def require_alive(self, name: str) -> None:
        if name not in self._table.running():
            raise StartTimeout(
                f"{name} ended; its log ({self._table.log_path(name)}):\n{self._table.tail(name)}"
            )
