"""What the environment may say about a run."""

import os
from dataclasses import dataclass

from terrace_local.toolchain.errors import ToolchainError
from terrace_local.toolchain.go_build import available_memory

SOURCES = ("path", "download", "build")
# A link of a Kubernetes binary takes about 2 GiB, and so does what compiles beside it.
_MEMORY_FOR_TWO_BUILDS = 8 << 30


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """`sources` in the order in which they are tried; `jobs`: modules built at once."""

    sources: tuple[str, ...]
    jobs: int

    @classmethod
    def from_environment(cls) -> "RunSettings":
        """Reads TERRACE_TOOLCHAIN_SOURCE and TERRACE_TOOLCHAIN_JOBS. Raises `ToolchainError`."""
        return cls(sources=_sources(), jobs=_jobs())


def _sources() -> tuple[str, ...]:
    given = os.environ.get("TERRACE_TOOLCHAIN_SOURCE", "").replace(" ", "")
    sources = tuple(given.split(",")) if given else SOURCES
    if set(sources) - set(SOURCES) or len(set(sources)) != len(sources):
        valid = ", ".join(SOURCES)
        raise ToolchainError(f"TERRACE_TOOLCHAIN_SOURCE={given!r}: valid are {valid}, each once")
    return sources


def _jobs() -> int:
    given = os.environ.get("TERRACE_TOOLCHAIN_JOBS", "")
    if not given:
        return 2 if available_memory() >= _MEMORY_FOR_TWO_BUILDS else 1
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ToolchainError(f"TERRACE_TOOLCHAIN_JOBS={given!r}: must be a whole number from 1 up")
    return int(given)
