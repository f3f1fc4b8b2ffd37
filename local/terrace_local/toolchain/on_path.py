"""A tool that the machine already has: accepted only if it says exactly the wanted version."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from terrace_local.toolchain.manifest import PathProbe, Tool

_PROBE_SECONDS = 20


def find_on_path(tool: Tool, *, ours: Path) -> Mapping[str, Path] | None:
    """Binary -> file for a tool whose binaries all lie in one folder of PATH, in the right version.

    None when there is none such, or when the tool's version can't be told from outside. What lies
    below `ours` (our own cache, which may be on PATH) is not the machine's and is not looked at.
    """
    if tool.on_path is None:
        return None
    for item in os.environ.get("PATH", "").split(os.pathsep):
        folder = Path(item)
        if not folder.is_absolute() or folder.is_relative_to(ours):
            continue
        found = {name: folder / name for name in tool.binaries}
        if not all(shutil.which(str(file)) for file in found.values()):
            continue
        said = _ask(tool.on_path, found[tool.binaries[0]])
        if tool.on_path.expression(tool.version).search(said):
            return found
    return None


def _ask(probe: PathProbe, binary: Path) -> str:
    argv = [
        part.replace("{binary}", str(binary)).replace("{folder}", str(binary.parent))
        for part in probe.argv
    ]
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{done.stdout}\n{done.stderr}"
