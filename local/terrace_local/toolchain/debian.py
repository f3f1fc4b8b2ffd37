"""Debian packages that the cluster and the image builds use: present, or installed by apt-get."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.locks import locked
from terrace_local.toolchain.manifest import Manifest, load_manifest
from terrace_local.toolchain.places import Places
from terrace_local.toolchain.process import last_lines
from terrace_local.toolchain.progress import Progress, Silent

_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"
_APT_OPTIONS = ("-y", "-o", "DPkg::Lock::Timeout=120", "-o", "Dpkg::Options::=--force-confold")


def missing_debian_packages(
    names: Iterable[str] | None = None, *, manifest: Manifest | None = None
) -> list[str]:
    """Those of the named packages (default: all of the manifest) whose proof is not there.

    The proof is a command or a file, not dpkg's word: what provides it does not matter.
    """
    known = (manifest or load_manifest()).debian
    wanted = list(known if names is None else names)
    if unknown := [name for name in wanted if name not in known]:
        raise ToolchainError(
            f"no such package in the manifest: {', '.join(unknown)}; there are: {', '.join(known)}"
        )
    return [name for name in wanted if not _is_there(known[name])]


def ensure_debian_packages(
    names: Iterable[str] | None = None,
    *,
    progress: Progress | None = None,
    manifest: Manifest | None = None,
    places: Places | None = None,
) -> list[str]:
    """Install those of the named packages that are missing, and return them; idempotent.

    Raises `ToolchainError` when that can't be done here: not a Debian-like system, not root, or
    apt-get failed. The machine's packages stay when Terrace goes.
    """
    progress = progress or Silent()
    places = places or Places.from_environment()
    names = None if names is None else list(names)
    if not missing_debian_packages(names, manifest=manifest):
        return []
    with locked(
        places.locks / "debian.lock",
        waiting=lambda pid: progress.note(f"waiting for pid {pid}, which installs packages"),
    ):
        missing = missing_debian_packages(names, manifest=manifest)
        if missing:
            _install(missing, progress, places)
            if left := missing_debian_packages(missing, manifest=manifest):
                raise ToolchainError(
                    "apt-get says they are installed, but what they should bring is not there",
                    subject=", ".join(left),
                    step="apt-get install",
                )
        return missing


def _install(packages: Sequence[str], progress: Progress, places: Places) -> None:
    subject = ", ".join(packages)
    if shutil.which("apt-get") is None:
        raise ToolchainError(
            "this system lacks what these Debian packages bring and has no apt-get; "
            "install their counterparts with its own package manager",
            subject=subject,
        )
    if os.geteuid() != 0:
        raise ToolchainError(
            f"they are missing and only root may install them: "
            f"sudo apt-get install {' '.join(packages)}",
            subject=subject,
        )
    log = places.logs / "apt.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    progress.begin("Debian packages", f"apt-get: {subject}")
    outcome = "not installed"
    try:
        # A dpkg that was once cut off refuses all further work until this is done.
        _run(["dpkg", "--configure", "-a"], subject, log, progress)
        _run(["apt-get", "update", *_APT_OPTIONS], subject, log, progress)
        install = ["apt-get", "install", "--no-install-recommends", *_APT_OPTIONS, *packages]
        _run(install, subject, log, progress)
        outcome = f"installed {subject}"
    finally:
        progress.end("Debian packages", outcome)


def _run(argv: Sequence[str], subject: str, log: Path, progress: Progress) -> None:
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    with log.open("ab") as output:
        # Its own session: Ctrl-C must not reach dpkg, which would leave packages half installed.
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:
            progress.note("stopping; apt-get first ends what it has begun")
            process.wait()
            raise
    if code != 0:
        raise ToolchainError(
            f"exit code {code}",
            subject=subject,
            step=" ".join(argv[:2]),
            log=log,
            last_lines=last_lines(log),
        )


def _is_there(proof: str) -> bool:
    if proof.startswith("/"):
        return Path(proof).exists()
    return shutil.which(proof, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_FOLDERS}") is not None
