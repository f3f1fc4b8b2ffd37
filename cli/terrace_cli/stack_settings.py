"""A stack's settings file: read, and checked; nothing here writes it."""

import difflib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from terrace_cli.errors import CliError, ExitCode, UsageError
from terrace_cli.places import STACK

_CHECK_SECONDS = 60
# All that Pulumi reads of such a file; it ignores anything else without a word.
_TOP_LEVEL = ("config", "environment", "encryptionsalt", "encryptedkey", "secretsprovider")


def settings_file(clone: Path, stack: str = STACK) -> Path:
    """Where a stack's settings are; the local one's without a name."""
    return clone / f"Pulumi.{stack}.yaml"


def configuration(clone: Path, stack: str = STACK) -> dict[str, Any]:
    """The file's `config:`, empty without a file.

    Raises UsageError for a damaged one, and for one with a key at its top that Pulumi ignores.
    """
    path = settings_file(clone, stack)
    try:
        document = yaml.safe_load(path.read_text()) or {}
        settings = dict(document.get("config") or {})
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UsageError(f"{path} is not a Pulumi settings file: {error}") from None
    if unknown := [key for key in document if key not in _TOP_LEVEL]:
        raise UsageError(
            f"{path.name}: {' '.join(map(_ignored, unknown))} Valid there: "
            f"{', '.join(_TOP_LEVEL)}. Pulumi ignores any other key."
        )
    return settings


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


def _ignored(key: object) -> str:
    near = difflib.get_close_matches(str(key).lower(), _TOP_LEVEL, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    if not near and ":" in str(key):
        hint = "; settings belong below 'config:'."
    return f"unknown key {str(key)!r} at the top level{hint}"
