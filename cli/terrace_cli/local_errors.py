"""Which exit code each error of `terrace_local` means."""

from terrace_cli.errors import ExitCode
from terrace_local.cluster.errors import (
    ClusterError,
    HeldByAnother,
    NotRunning,
    PreflightFailed,
    StartTimeout,
)
from terrace_local.images.errors import ImageError
from terrace_local.toolchain.errors import Stopped, ToolchainError

_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (HeldByAnother, ExitCode.HELD_BY_ANOTHER),
    (PreflightFailed, ExitCode.MACHINE),
    (StartTimeout, ExitCode.NOT_UP_IN_TIME),
    (NotRunning, ExitCode.NOT_RUNNING),
    (ClusterError, ExitCode.NOT_UP_IN_TIME),
    (ToolchainError, ExitCode.MACHINE),
    (ImageError, ExitCode.NOT_UP_IN_TIME),
    (Stopped, ExitCode.INTERRUPTED),
)


def exit_code_of(error: Exception) -> ExitCode | None:
    """The code, or None for an error that is a defect rather than something a person can act on."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), None)
