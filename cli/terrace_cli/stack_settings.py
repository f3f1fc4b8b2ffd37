"""A stack's settings file: read, and checked; nothing here writes it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from terrace_cli.errors import CliError, ExitCode, UsageError
from terrace_cli.places import STACK

_CHECK_SECONDS = 60


def settings_file(clone: Path, stack: str = STACK) -> Path:
    """Where a stack's settings are; the local one's without a name."""
    return clone / f"Pulumi.{stack}.yaml"


def configuration(clone: Path, stack: str = STACK) -> dict[str, Any]:
    """The file's `config:`, empty without a file. Raises UsageError for a damaged one."""
    path = settings_file(clone, stack)
    try:
        document = yaml.safe_load(path.read_text()) or {}
        return dict(document.get("config") or {})
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a Pulumi settings file: {error}") from None


def checked_stage(clone: Path, stage: int | None, name: str = STACK) -> int:
    """The stage to bring up: the one that was asked for, else the file's, else the default.

    `name` is the stack's.

    Raises UsageError, before anything is changed, when the program would refuse the settings.
    """
    settings = configuration(clone, name)
    if stage is not None:
        settings["terrace:stage"] = stage
    # A process of its own: the program's settings are no part of what this command may import.
    done = subprocess.run(
        [
            sys.executable,
            "-P",
            "-m",
            "terrace_blueprints.check_settings",
            settings_file(clone, name),
        ],
        input=json.dumps(settings, default=str),
        capture_output=True,
        text=True,
        check=False,
        timeout=_CHECK_SECONDS,
    )
    said = done.stderr.strip()
    if done.returncode == ExitCode.USAGE:
        raise UsageError(said)
    if done.returncode:
        raise CliError(f"The settings could not be checked: {said[-600:] or 'no reason was given'}")
    return int(done.stdout)
