"""The local stack's state after a power cut or a kill: files that nothing can read any more."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

_SIDE_FILES = "*.attrs"


def repair_state(backend: Path, checkpoint: Path, say: Callable[[str], None]) -> None:
    """Make what lies in a folder of states readable for Pulumi again; `say` what was done.

    Side files hold attributes of a state that nobody needs, and Pulumi reads no state beside one
    that was cut short. A state that was itself cut short is taken from the copy that Pulumi made
    before it wrote; what was there is kept in `backend`. Harmless beside a Pulumi that runs.
    """
    for side in sorted((backend / ".pulumi").rglob(_SIDE_FILES)):
        if not _is_json(side):
            side.unlink(missing_ok=True)
            say(f"removed {side}, which was cut short; Pulumi needs no such file")
    copy = checkpoint.with_name(f"{checkpoint.name}.bak")
    if not checkpoint.exists() or _is_json(checkpoint) or not _is_json(copy):
        return
    kept = backend / f"{checkpoint.stem}-{time.time_ns()}.damaged"
    shutil.copyfile(checkpoint, kept)
    draft = checkpoint.with_name(f"{checkpoint.name}.{os.getpid()}.tmp")
    shutil.copyfile(copy, draft)
    draft.replace(checkpoint)
    say(f"{checkpoint} was cut short: took {copy.name}, kept what was there as {kept}")


def _is_json(file: Path) -> bool:
    try:
        return isinstance(json.loads(file.read_bytes()), dict)
    except (FileNotFoundError, ValueError):
        return False
