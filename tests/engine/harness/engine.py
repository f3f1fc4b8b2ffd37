"""One person's machine: the Pulumi CLI, its state, and providers that speak to one cloud."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from harness.cloud import Cloud
from terrace_local.toolchain import ensure
from terrace_local.toolchain.places import Places

TOOLS = ("pulumi", "pulumi-language-python")
PROVIDERS = ("aws", "eks", "kubernetes")
# Read from the SDKs once per machine: it takes seconds per AWS service.
SCHEMA_CACHE = Places.from_environment().root / "simulated-cloud"
PASSPHRASE = "correct-horse-battery"


@cache
def bin_directory() -> Path:
    """The folder with the CLI and its Python language host, from the toolchain's cache."""
    return ensure(1, only=TOOLS).bin_dir


@dataclass(frozen=True)
class Engine:
    """Runs `pulumi` with an environment of its own: nothing of the caller's reaches it.

    Two engines on one ``home`` are two people with one state backend; two engines on one
    ``cloud`` are two programs in one account.
    """

    home: Path
    cloud: Cloud
    extra: Mapping[str, str] = field(default_factory=dict[str, str])
    """More environment variables, for the program and the providers."""

    def __post_init__(self) -> None:
        for folder in (self.home, self.home / "state", self.plugins):
            folder.mkdir(parents=True, exist_ok=True)
        for name in PROVIDERS:
            wrapper = self.plugins / f"pulumi-resource-{name}"
            wrapper.write_text(
                f"#!/bin/sh\nPYTHONPATH={self.cloud.package} "
                f'exec {sys.executable} -u -m simulated_cloud {name} "$@"\n'
            )
            wrapper.chmod(0o755)

    @property
    def plugins(self) -> Path:
        return self.home / "plugins-on-path"

    @property
    def environment(self) -> dict[str, str]:
        path = (self.plugins, bin_directory(), Path(sys.executable).parent, "/usr/bin", "/bin")
        return {
            "PATH": os.pathsep.join(map(str, path)),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PULUMI_BACKEND_URL": f"file://{self.home / 'state'}",
            "PULUMI_HOME": str(self.home / "pulumi"),
            "PULUMI_CONFIG_PASSPHRASE": PASSPHRASE,
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            # Without it the CLI hides --event-log.
            "PULUMI_DEBUG_COMMANDS": "1",
            "SIMULATED_CLOUD_DIR": str(self.cloud.directory),
            "SIMULATED_CLOUD_CACHE": str(SCHEMA_CACHE),
            "SIMULATED_CLOUD_JOBS": str(Path(__file__).with_name("terrace_jobs.py")),
            **self.extra,
        }

    def copy(self, to: Path) -> "Engine":
        """The same machine and account once more, as they are now; what one does, the other sees
        nothing of."""
        shutil.copytree(self.home, to / "machine", symlinks=True)
        shutil.copytree(self.cloud.directory, to / "cloud")
        return replace(self, home=to / "machine", cloud=Cloud(to / "cloud"))

    def start(self, arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
        """Start `pulumi ARGUMENTS` in a session of its own, so that a signal reaches it alone."""
        return subprocess.Popen(
            [str(bin_directory() / "pulumi"), *arguments, "--non-interactive"],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def pulumi(self, *arguments: str, folder: Path) -> str:
        """Output of a `pulumi` command that must succeed."""
        process = self.start(arguments, folder)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"pulumi {' '.join(arguments)}:\n{output}"
        return output
