"""The toolchain as the command line shows it; nothing here fetches or builds."""

from pathlib import Path

from terrace_cli.errors import NotRunningError
from terrace_local import toolchain
from terrace_local.toolchain.status import status


def bin_directory(stage: int = 1) -> Path:
    """The folder with the stage's binaries. Raises NotRunningError unless all are there."""
    absent = [
        tool.name
        for tool in status()
        if tool.source in ("missing", "damaged") and not tool.on_request
    ]
    if absent:
        raise NotRunningError(
            f"The toolchain is not complete ({', '.join(absent)}). `terrace up` makes it so."
        )
    return toolchain.ensure(stage).bin_dir


def tool_rows() -> list[dict[str, str | bool]]:
    """A row per tool for `terrace toolchain status`: name, version, source, verified, location."""
    return [
        {
            "name": tool.name,
            "version": tool.version,
            "source": tool.source,
            "verified": tool.verified,
            "location": str(tool.location or "-"),
        }
        for tool in status()
    ]
