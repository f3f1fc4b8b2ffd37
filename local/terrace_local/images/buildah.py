"""Images built by buildah, in a storage of its own below the cache folder."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from terrace_local.images.builder import BuildRequest
from terrace_local.images.errors import ImageError
from terrace_local.images.root_archive import write_root_archive
from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.process import run_logged

_MOST_BYTES = 8 * 1024**3
"""Layers of old builds only ever add up; a cold build of everything is a few minutes."""


class Buildah:
    """An ImageBuilder. One instance per image being built; they may share a storage folder.

    Builds run with chroot isolation on the host's network: no daemon, no registry, no bridge.
    """

    def __init__(self, storage: Path, *, log: Path, stop: Event | None = None) -> None:
        self._storage = storage
        self._log = log
        self._stop = stop or Event()

    def pull(self, source: str, *, seconds: float) -> str | None:
        command = [*self._command(), "pull", "--quiet", f"docker://{source}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, check=False,
                env=self._environment(), stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
        return source if done.returncode == 0 else None

    def take_in(self, archive: Path, reference: str) -> None:
        if self._knows(reference):
            return
        self._run("load", ["pull", "--quiet", f"docker-archive:{archive}"])
        if not self._knows(reference):
            raise ImageError(f"{archive} holds no image {reference}; log: {self._log}")

    def take_in_root(self, root_tar: Path, reference: str) -> None:
        # Not `FROM scratch` with ADD: that would unpack and pack again. An archive of one layer.
        archive = root_tar.with_suffix(".image.tar")
        try:
            write_root_archive(root_tar, archive, reference)
            self._run("load", ["pull", "--quiet", f"docker-archive:{archive}"])
        finally:
            archive.unlink(missing_ok=True)

    def build(self, request: BuildRequest) -> None:
        options = [
            "bud",
            "--quiet",
            "--isolation",
            "chroot",
            "--network",
            "host",
            "--format",
            "docker",
        ]
        options += ["--squash"] if request.squash else ["--layers"]
        options += ["--pull-never", "--tag", request.reference, "--file", str(request.dockerfile)]
        for name, value in request.arguments.items():
            options += ["--build-arg", f"{name}={value}"]
        for name, value in request.labels.items():
            options += ["--label", f"{name}={value}"]
        for name, file in request.secrets.items():
            options += ["--secret", f"id={name},src={file}"]
        for source, target in request.volumes.items():
            options += ["--volume", f"{source}:{target}:ro"]
        self._run("build", [*options, str(request.context)])

    def write_archive(self, reference: str, archive: Path) -> None:
        self._run("export", ["push", "--quiet", reference, f"docker-archive:{archive}:{reference}"])

    def reset(self) -> None:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
        points = [line.split()[1] for line in mounts if len(line.split()) > 1]
        for point in sorted(points, key=len, reverse=True):
            if Path(point).is_relative_to(self._storage):
                subprocess.run(["umount", "--lazy", point], check=False, capture_output=True)
        shutil.rmtree(self._storage, ignore_errors=True)

    def trim(self) -> None:
        total = 0
        for folder, _, files in os.walk(self._storage):
            for name in files:
                with contextlib.suppress(OSError):
                    total += (Path(folder) / name).lstat().st_size
        if total > _MOST_BYTES:
            self.reset()

    def _knows(self, reference: str) -> bool:
        done = subprocess.run(
            [*self._command(), "images", "--json", "--filter", f"reference={reference}"],
            capture_output=True, text=True, check=False, env=self._environment(),
        )  # fmt: skip
        if done.returncode != 0:
            return False
        try:
            return bool(json.loads(done.stdout or "[]"))
        except ValueError:
            return False

    def _run(self, step: str, arguments: Sequence[str]) -> None:
        self._storage.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            run_logged(
                [*self._command(), *arguments],
                subject=self._log.stem,
                step=step,
                log=self._log,
                folder=self._storage,
                environment=self._environment(),
                stop=self._stop,
            )
        except ToolchainError as failed:
            raise ImageError(str(failed)) from failed

    def _command(self) -> list[str]:
        # A mount namespace of its own: what buildah mounts, and leaves mounted when it is killed,
        # is gone with it.
        return [
            "unshare", "--mount", "--propagation", "private",
            "buildah", "--root", str(self._storage / "root"),
            "--runroot", str(self._storage / "run"), "--storage-driver", self._driver(),
        ]  # fmt: skip

    def _driver(self) -> str:
        """overlay, or the slow vfs where the storage itself lies on an overlay (in a container)."""
        chosen = self._storage / "driver"
        with contextlib.suppress(OSError):
            return chosen.read_text(encoding="utf-8").strip()
        self._storage.mkdir(mode=0o700, parents=True, exist_ok=True)
        driver = "overlay" if _overlay_works(self._storage) else "vfs"
        chosen.write_text(f"{driver}\n", encoding="utf-8")
        return driver

    def _environment(self) -> dict[str, str]:
        # No registries.conf, policy or auth of the machine's: what is built is decided here.
        policy = self._storage / "policy.json"
        if not policy.exists():
            self._storage.mkdir(mode=0o700, parents=True, exist_ok=True)
            policy.write_text(
                '{"default": [{"type": "insecureAcceptAnything"}]}\n', encoding="utf-8"
            )
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(self._storage)}
        environment.pop("STORAGE_DRIVER", None)
        environment.pop("STORAGE_OPTS", None)
        return environment


def _overlay_works(folder: Path) -> bool:
    probe = folder / "overlay-probe"
    shutil.rmtree(probe, ignore_errors=True)
    parts = {name: probe / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    mounted = subprocess.run(
        ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"])],
        capture_output=True, check=False,
    )  # fmt: skip
    if mounted.returncode == 0:
        subprocess.run(["umount", str(parts["merged"])], capture_output=True, check=False)
    shutil.rmtree(probe, ignore_errors=True)
    return mounted.returncode == 0
