"""How `terrace` fails: one exit code per kind of trouble, and a sentence for people."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit codes of `terrace`; scripts may rely on them."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    MACHINE = 3
    HELD_BY_ANOTHER = 4
    NOT_UP_IN_TIME = 5
    NOT_RUNNING = 6
    INTERRUPTED = 130


class CliError(Exception):
    """Something a person can act on. The message says what is wrong, where, and what to do."""

    exit_code = ExitCode.CHECK_FAILED


class UsageError(CliError):
    """Wrong usage or configuration."""

    exit_code = ExitCode.USAGE


class MachineError(CliError):
    """The machine lacks something."""

    exit_code = ExitCode.MACHINE


class HeldByAnotherError(CliError):
    """Another clone holds the machine, or another run the stack."""

    exit_code = ExitCode.HELD_BY_ANOTHER


class NotUpInTimeError(CliError):
    """A part did not come up."""

    exit_code = ExitCode.NOT_UP_IN_TIME


class NotRunningError(CliError):
    """The platform, or the part that was asked, is not running."""

    exit_code = ExitCode.NOT_RUNNING
