"""Where things lie: this clone, its endpoints file, and the machine's state directory."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import terrace_cli
from terrace_cli.errors import UsageError

STACK = "local"


def repository() -> Path:
    """The clone this command belongs to: `TERRACE_REPOSITORY`, else the one the package lies in.

    Raises UsageError when there is no Pulumi program there (a wheel installed without the clone).
    """
    override = os.environ.get("TERRACE_REPOSITORY")
    root = Path(override) if override else Path(terrace_cli.__file__).resolve().parents[2]
    if not (root / "Pulumi.yaml").is_file():
        raise UsageError(
            f"{root} is not a clone of Terrace: it has no Pulumi.yaml. Run the terrace of "
            "a clone's .venv, or set TERRACE_REPOSITORY to the clone."
        )
    return root


def state_directory() -> Path:
    """Machine state, one per machine: `TERRACE_STATE_DIR`, else `/var/lib/terrace`."""
    return Path(os.environ.get("TERRACE_STATE_DIR", "/var/lib/terrace"))


def endpoints_file() -> Path:
    """Per clone: where people and scripts find the platform."""
    return repository() / ".terrace" / "endpoints.json"


@contextmanager
def exclusive_use(clone: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold this clone for one command that changes things; a second one waits its turn.

    The lock is on the clone's directory itself: it leaves no file behind, ends with the process
    whatever happens to it, and needs no write permission. Other clones are refused by the
    machine's own lock.
    """
    descriptor = os.open(clone, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
