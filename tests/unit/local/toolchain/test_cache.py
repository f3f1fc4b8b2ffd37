"""A cache entry is whole and verified, or it is not used."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from terrace_local.toolchain import Toolchain, ToolchainError
from terrace_local.toolchain import cache as cache_module
from terrace_local.toolchain.cache import ENTRY_FILE, STAMP_FILE, sha256_of, work_folder
from terrace_local.toolchain.places import Places, recipe_hash


class OneTool:
    """The world with one tool, `hello`."""

    def __init__(self, world: Any, tool: dict[str, Any]) -> None:
        self.places: Places = world.places
        self.modules_root: Path = world.modules_root
        self.recorder = world.recorder
        self.tool = tool
        self._world = world

    def ensure(self) -> Toolchain:
        return self._world.ensure(self.tool)

    def status(self) -> str:
        return self._world.status(self.tool)[0].source

    def entry(self) -> Path:
        manifest = self._world.manifest(self.tool)
        [tool] = manifest.tools
        return self.places.entry(tool, recipe_hash(tool, manifest, self.modules_root))

    @property
    def builds(self) -> int:
        return self.recorder.ends.count("hello: built")


@pytest.fixture
def one(world: Any, hello: dict[str, Any]) -> OneTool:
    return OneTool(world, hello)


def overwrite_keeping_the_stamp(file: Path, content: bytes) -> None:
    """Damage that size and times do not show."""
    before = file.stat()
    with file.open("r+b") as stream:
        stream.write(content)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_finished_entry_is_used_again_and_is_the_same_folder(one: OneTool) -> None:
    first = one.ensure()
    assert one.status() == "built"
    again = one.ensure()
    assert again.bin_dir == first.bin_dir
    assert one.builds == 1


def test_bin_folder_holds_the_programs_and_nothing_else(one: OneTool) -> None:
    toolchain = one.ensure()
    (toolchain.bin_dir / "stray").write_text("#!/bin/sh\n")
    assert [file.name for file in one.ensure().bin_dir.iterdir()] == ["hello"]
    assert toolchain.path("hello") == toolchain.bin_dir / "hello"
    with pytest.raises(ToolchainError, match=r"no binary 'helo' .*; there are: hello"):
        toolchain.path("helo")


@pytest.mark.parametrize("damage", ["truncated", "grown", "flipped", "empty", "gone", "mode"])
def test_damaged_binary_is_built_again(one: OneTool, damage: str) -> None:
    file = one.ensure().binaries["hello"].file
    good = sha256_of(file)
    content = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(content[:-1])
        case "grown":
            file.write_bytes(content + b"\0")
        case "flipped":
            file.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
        case "empty":
            file.write_bytes(b"")
        case "gone":
            file.unlink()
        case _:
            file.chmod(0o644)
    assert one.status() == "damaged"
    toolchain = one.ensure()
    assert one.builds == 2
    assert sha256_of(toolchain.path("hello")) == good
    assert any("hello is damaged" in note for note in one.recorder.notes)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"files": {}}', b"\xff\xfe"])
def test_entry_with_a_half_written_list_is_built_again(one: OneTool, content: bytes) -> None:
    entry = one.ensure().binaries["hello"].file.parent
    (entry / ENTRY_FILE).write_bytes(content)
    assert one.ensure().binaries["hello"].file.exists()
    assert one.builds == 2


def test_entry_folder_without_anything_in_it_is_built_again(one: OneTool) -> None:
    one.entry().mkdir(parents=True)
    one.ensure()
    assert one.builds == 1


def test_without_a_stamp_the_full_hash_decides(one: OneTool) -> None:
    entry = one.ensure().binaries["hello"].file.parent
    overwrite_keeping_the_stamp(entry / "hello", b"garbage")
    (entry / STAMP_FILE).write_text('{"hel')
    one.ensure()
    assert one.builds == 2


def test_stamp_saves_hashing_and_is_written_again_after_a_full_check(
    one: OneTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = one.ensure().binaries["hello"].file.parent
    hashed: list[Path] = []

    def counting(file: Path) -> str:
        hashed.append(file)
        return sha256_of(file)

    monkeypatch.setattr(cache_module, "sha256_of", counting)
    one.ensure()
    assert hashed == []
    os.utime(entry / "hello")
    one.ensure()
    assert hashed == [entry / "hello"]
    one.ensure()
    assert len(hashed) == 1
    assert one.builds == 1


def test_rebuilt_entry_replaces_what_the_bin_folder_links_to(one: OneTool) -> None:
    toolchain = one.ensure()
    good = sha256_of(toolchain.path("hello"))
    toolchain.path("hello").write_bytes(b"garbage")
    again = one.ensure()
    assert again.bin_dir == toolchain.bin_dir
    assert sha256_of(again.path("hello")) == good


@pytest.mark.parametrize("part", ["go.mod", "go.sum", "hello/main.go"])
def test_changed_recipe_is_another_entry(one: OneTool, part: str) -> None:
    first = one.ensure().binaries["hello"].file
    with (one.modules_root / "tiny" / part).open("a") as file:
        file.write("// changed\n" if part != "go.sum" else "\n")
    second = one.ensure().binaries["hello"].file
    assert second.parent != first.parent
    assert first.exists()


def test_what_does_not_decide_the_binary_is_not_in_the_recipe(one: OneTool) -> None:
    one.ensure()
    probe = {"argv": ["{binary}", "version"], "pattern": "^{version}$"}
    one.tool = one.tool | {"on_path": probe}
    (one.modules_root / "tiny" / "major" / "v2" / "main.go").write_text("package main\n")
    one.ensure()
    assert one.builds == 1


def test_entry_from_a_source_that_is_not_allowed_is_made_anew(
    one: OneTool,
    site: Any,
    published: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site.publish("hello-1.2.3", b"#!/bin/sh\n")
    one.tool = published
    assert one.ensure().binaries["hello"].source == "downloaded"
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "build")
    assert one.ensure().binaries["hello"].source == "built"


def test_work_folders_of_the_dead_go_and_those_of_the_living_stay(places: Places) -> None:
    with work_folder(places) as living:
        pid, started, _ = living.name.split("-")
        dead = [
            places.work / f"{pid}-{int(started) + 1}-aaaaaaaa",  # a pid that was given anew
            places.work / "4194305-1-bbbbbbbb",  # above the kernel's highest pid
            places.work / "garbage",
        ]
        for folder in dead:
            (folder / "deep").mkdir(parents=True)
        with work_folder(places):
            assert living.exists()
            assert not any(folder.exists() for folder in dead)
    assert not living.exists()


def test_disk_without_room_is_an_error_in_words_and_leaves_no_entry(
    one: OneTool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(cache_module.os, "fsync", full)
    with pytest.raises(ToolchainError, match="No space left on device"):
        one.ensure()
    monkeypatch.undo()
    assert one.status() == "missing"
    assert not list(one.places.work.iterdir())
    one.ensure()
    assert one.status() == "built"


def test_record_says_what_the_files_are(one: OneTool) -> None:
    binary = one.ensure().binaries["hello"]
    record = json.loads((binary.file.parent / ENTRY_FILE).read_text())
    assert record["version"] == "1.2.3"
    assert record["files"] == {"hello": sha256_of(binary.file)}
