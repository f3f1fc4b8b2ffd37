"""Debian packages: asked for by what they bring, installed only where that is missing."""

import os
from pathlib import Path
from typing import Any

import pytest

from terrace_local.toolchain import (
    ToolchainError,
    ensure_debian_packages,
    missing_debian_packages,
)
from terrace_local.toolchain.manifest import Manifest

APT = """#!/bin/sh
echo "$0 $*" >> {log}
[ "$1" = install ] && touch {brings}
echo "E: something went wrong" >&2
exit {code}
"""


class Machine:
    def __init__(self, folder: Path, world: Any, manifest: Manifest) -> None:
        self.log = folder / "log"
        self.proof = folder / "proof"
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.places = world.places
        self.manifest = manifest
        self.recorder = world.recorder

    def with_apt(self, *, brings: Path | None = None, code: int = 0) -> None:
        for name in ("apt-get", "dpkg"):
            body = APT.format(log=self.log, brings=brings or self.proof, code=code)
            (self.bin / name).write_text(body)
            (self.bin / name).chmod(0o755)

    def ensure(self, *names: str) -> list[str]:
        return ensure_debian_packages(
            names or None, progress=self.recorder, manifest=self.manifest, places=self.places
        )

    def calls(self) -> list[list[str]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.rpartition("/bin/")[2].split() for line in lines]


@pytest.fixture
def machine(
    tmp_path: Path, world: Any, hello: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> Machine:
    debian = {"shell": "sh", "thing": str(tmp_path / "proof")}
    machine = Machine(tmp_path, world, world.manifest(hello, debian=debian))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    for name in ("sh", "touch"):
        (machine.bin / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(machine.bin))
    return machine


def test_nothing_is_run_when_all_is_there(machine: Machine) -> None:
    machine.with_apt()
    machine.proof.touch()
    assert machine.ensure() == []
    assert machine.calls() == []


def test_only_what_is_missing_is_installed_after_one_update(machine: Machine) -> None:
    machine.with_apt()
    assert machine.ensure() == ["thing"]
    calls = machine.calls()
    assert [call[:2] for call in calls] == [
        ["dpkg", "--configure"],
        ["apt-get", "update"],
        ["apt-get", "install"],
    ]
    assert calls[-1][-1] == "thing"
    assert "shell" not in calls[-1]
    assert machine.ensure() == []
    assert len(machine.calls()) == 3


def test_unknown_package_is_an_error_that_lists_the_known(machine: Machine) -> None:
    with pytest.raises(ToolchainError, match="in the manifest: thin; there are: shell, thing"):
        machine.ensure("thin")


def test_failed_apt_shows_its_last_lines(machine: Machine) -> None:
    machine.with_apt(code=100)
    with pytest.raises(ToolchainError, match="E: something went wrong") as caught:
        machine.ensure()
    assert "thing" in str(caught.value)
    assert str(machine.places.logs / "apt.log") in str(caught.value)


def test_package_that_does_not_bring_its_proof_is_an_error(machine: Machine) -> None:
    machine.with_apt(brings=machine.log)
    with pytest.raises(ToolchainError, match="what they should bring is not there"):
        machine.ensure("thing")


def test_without_apt_it_says_what_is_missing(machine: Machine) -> None:
    with pytest.raises(ToolchainError, match=r"^thing: .*has no apt-get"):
        machine.ensure()


def test_without_root_it_says_what_to_type(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.with_apt()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ToolchainError, match="sudo apt-get install thing"):
        machine.ensure()
    assert machine.calls() == []


def test_missing_ones_are_told_without_installing(machine: Machine) -> None:
    assert missing_debian_packages(manifest=machine.manifest) == ["thing"]
    assert missing_debian_packages(["shell"], manifest=machine.manifest) == []
