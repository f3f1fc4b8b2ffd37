"""The root file system under the base image: a registry's Debian 12, or one of its packages."""

import os
from pathlib import Path
from threading import Event

from terrace_local.images.builder import ImageBuilder
from terrace_local.images.errors import ImageError
from terrace_local.images.host_settings import HostSettings
from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.process import run_logged

REGISTRY_IMAGE = "docker.io/library/debian:bookworm-slim"
LOCAL_NAME = "terrace.local/debian-root:bootstrapped"
_REGISTRY_SECONDS = 45.0
_PACKAGES = ("python3", "ca-certificates", "usr-is-merged")
"""usr-is-merged: else the package that merges is installed, and brings all of Perl (50 MB)."""
_HOOKS = Path("/usr/share/mmdebstrap/hooks/merged-usr")


def debian_root(
    builder: ImageBuilder, host: HostSettings, folder: Path, *, log: Path, stop: Event
) -> str:
    """The name under which the builder knows a Debian 12 root.

    Without a way to the registry the pull fails at once; with a slow one it is given up after
    45 s. Raises ImageError when the packages can't be had either.
    """
    pulled = builder.pull(REGISTRY_IMAGE, seconds=_REGISTRY_SECONDS)
    if pulled:
        return pulled
    tar = folder / "root.tar"
    try:
        bootstrap(tar, host, log=log, stop=stop)
        builder.take_in_root(tar, LOCAL_NAME)
    finally:
        tar.unlink(missing_ok=True)
    return LOCAL_NAME


def bootstrap(tar: Path, host: HostSettings, *, log: Path, stop: Event) -> None:
    """Writes a minimal Debian 12 with Python and CA certificates to `tar`, no package lists."""
    command = ["mmdebstrap", "--variant=minbase", f"--include={','.join(_PACKAGES)}"]
    if _HOOKS.is_dir():
        command.append(f"--hook-dir={_HOOKS}")
    for excluded in ("doc", "man", "info", "locale", "lintian"):
        command.append(f"--dpkgopt=path-exclude=/usr/share/{excluded}/*")
    command.append("--dpkgopt=path-include=/usr/share/doc/*/copyright")
    if host.apt_options:
        command.append(f"--aptopt={host.apt_options}")
    # The mirrors' names stay out of the image: builds mount the sources of their machine.
    command.append(
        '--customize-hook=rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* '
        '"$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/var/lib/apt/lists/* "$1"/var/cache/* '
        '"$1"/var/log/*'
    )
    command += ["bookworm", str(tar), *map(str, host.apt_sources)]
    # Reproducible as far as the packages are.
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "0"}
    try:
        run_logged(
            command,
            subject="base image",
            step="bootstrap from Debian packages",
            log=log,
            folder=tar.parent,
            environment=environment,
            stop=stop,
        )
    except ToolchainError as failed:
        raise ImageError(
            f"no Debian 12 to build on: {REGISTRY_IMAGE} is not reachable, and {failed}"
        ) from failed
