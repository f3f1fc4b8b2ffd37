"""The binaries that Terrace runs on this machine: "give me these, for this stage"."""

from terrace_local.toolchain.bins import Binary, Toolchain
from terrace_local.toolchain.debian import ensure_debian_packages, missing_debian_packages
from terrace_local.toolchain.ensure import ensure
from terrace_local.toolchain.errors import ManifestError, ToolchainError
from terrace_local.toolchain.progress import ConsoleProgress, Progress, Silent
from terrace_local.toolchain.status import ToolStatus, status

__all__ = [
    "Binary",
    "ConsoleProgress",
    "ManifestError",
    "Progress",
    "Silent",
    "ToolStatus",
    "Toolchain",
    "ToolchainError",
    "ensure",
    "ensure_debian_packages",
    "missing_debian_packages",
    "status",
]
