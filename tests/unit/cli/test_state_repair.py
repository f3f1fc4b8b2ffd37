"""What a kill or a power cut leaves of the local stack's files is made readable, and nothing else
is touched. That Pulumi reads them then: tests/engine/test_machines_backend.py."""

from pathlib import Path

import pytest

from terrace_cli.state_repair import repair_state


@pytest.fixture
def backend(tmp_path: Path) -> Path:
    states = tmp_path / ".pulumi/stacks/terrace"
    states.mkdir(parents=True)
    (states / "local.json").write_text('{"version": 3, "n": 2}')
    (states / "local.json.bak").write_text('{"version": 3, "n": 1}')
    for name in ("local.json", "local.json.bak"):
        (states / f"{name}.attrs").write_text('{"md5": "x"}\n')
    return tmp_path


@pytest.fixture
def checkpoint(backend: Path) -> Path:
    return backend / ".pulumi/stacks/terrace/local.json"


@pytest.fixture
def said() -> list[str]:
    return []


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_state_that_is_whole_is_left_alone(
    backend: Path, checkpoint: Path, said: list[str]
) -> None:
    before = contents(backend)
    repair_state(backend, checkpoint, said.append)
    assert (contents(backend), said) == (before, [])


def test_before_there_is_any_state(tmp_path: Path, said: list[str]) -> None:
    repair_state(tmp_path, tmp_path / ".pulumi/stacks/terrace/local.json", said.append)
    assert (contents(tmp_path), said) == ({}, [])


@pytest.mark.parametrize("left", [b"", b'{"user.cache_control":"', b"\0\0\0", b"3"])
@pytest.mark.parametrize("of", ["local.json", "local.json.bak", "meta.yaml"])
def test_a_side_file_that_was_cut_short_goes(
    *, backend: Path, checkpoint: Path, said: list[str], left: bytes, of: str
) -> None:
    before = contents(backend)
    folder = backend / ".pulumi" if of == "meta.yaml" else checkpoint.parent
    side = folder / f"{of}.attrs"
    side.write_bytes(left)
    repair_state(backend, checkpoint, said.append)
    before.pop(str(side.relative_to(backend)), None)
    assert contents(backend) == before
    assert [str(side) in line for line in said] == [True]


@pytest.mark.parametrize("left", [b"", b'{"version": 3, "n": ', b"\0\0\0"])
def test_a_state_that_was_cut_short_is_taken_from_its_copy(
    backend: Path, checkpoint: Path, said: list[str], left: bytes
) -> None:
    checkpoint.write_bytes(left)
    repair_state(backend, checkpoint, said.append)
    assert checkpoint.read_text() == '{"version": 3, "n": 1}'
    (kept,) = backend.glob("local-*.damaged")
    assert kept.read_bytes() == left
    assert [str(kept) in line for line in said] == [True]


def test_a_copy_that_is_cut_short_itself_replaces_nothing(
    backend: Path, checkpoint: Path, said: list[str]
) -> None:
    checkpoint.write_bytes(b"{")
    checkpoint.with_name("local.json.bak").write_bytes(b"")
    before = contents(backend)
    repair_state(backend, checkpoint, said.append)
    assert (contents(backend), said) == (before, [])
