"""What `requirements/install.sh` says when it cannot install."""

import os
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
# A Python that is new enough and whose `venv` fails.
PYTHON = """#!/bin/sh
case "$*" in *"-m venv"*) echo "no space left on device" >&2; exit 1 ;; esac
"""


@pytest.fixture
def clone() -> Iterator[Path]:
    """What the script reads, in a folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="terrace-clone-"))
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    for project in ROOT.glob("**/pyproject.toml"):
        if ".venv" in str(project) or "name" not in tomllib.loads(project.read_text()).get(
            "project", {}
        ):
            continue
        copied = folder / project.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(project, copied)
    python = folder / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def install(clone: Path, user: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(clone / "requirements/install.sh"), "infra"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(clone / "python")},
        capture_output=True,
        text=True,
        check=False,
        user=user,
    )


@pytest.mark.parametrize("folder", [".", ".venv-uv", ".venv"])
def test_a_folder_that_cannot_be_written_is_named(clone: Path, folder: str) -> None:
    target = clone / folder
    for other in (clone, *([] if target == clone else [clone / ".venv-uv", clone / ".venv"])):
        other.mkdir(exist_ok=True)
        other.chmod(0o555 if other == target else 0o777)
    user = None if os.geteuid() else NOBODY
    done = install(clone, user)
    assert done.returncode == 3
    assert f"cannot write to {target}:" in done.stderr
    assert "venv module" not in done.stderr


def test_a_venv_that_fails_for_another_reason_is_not_said_to_be_missing(clone: Path) -> None:
    done = install(clone)
    assert done.returncode == 3
    assert "no space left on device" in done.stderr
    assert "install the venv module" not in done.stderr
