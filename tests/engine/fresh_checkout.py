"""A checkout of the repository as somebody else would have it, and shell commands in it."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from harness import Engine
from harness.accounts import OFFICE

ROOT = Path(__file__).resolve().parents[2]
_NOT_THERE = ("PULUMI_", "AWS_", "TERRACE_", "KUBECONFIG", "VIRTUAL_ENV", "PYTHON")


def check_out(folder: Path) -> Path:
    """Copies the files that git knows or would add: nothing built, no environment, no settings."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def machine(engine: Engine, home: Path) -> dict[str, str]:
    """Environment of a machine with the CLI and simulated providers, and no login to any backend.

    PATH has no Python of ours before the machine's own, or a wrong environment would go unnoticed.
    """
    ours = str(ROOT / ".venv")
    path = [p for p in engine.environment["PATH"].split(os.pathsep) if not p.startswith(ours)]
    own = {name: value for name, value in os.environ.items() if not name.startswith(_NOT_THERE)}
    return {
        # How packages are got is the machine's own business (certificates, mirrors, caches).
        "SIMULATED_CLOUD_CACHE": str(Path.home() / ".cache/simulated-cloud"),
        "UV_CACHE_DIR": str(Path.home() / ".cache/uv"),
        **own,
        "PATH": os.pathsep.join([*path, "/usr/sbin", "/sbin"]),
        "PYTHON": os.path.realpath(ROOT / ".venv/bin/python"),
        "HOME": str(home),
        "NO_COLOR": "1",
        "PULUMI_HOME": engine.environment["PULUMI_HOME"],
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "SIMULATED_CLOUD_DIR": engine.environment["SIMULATED_CLOUD_DIR"],
        "SIMULATED_CLOUD_ADDRESS": OFFICE,
    }


def shell(
    commands: str, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Runs commands in one bash that stops at the first failure; stdout and stderr in one."""
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
