"""Which source is taken: PATH when it is exactly the version, and what the environment asks for."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from terrace_local.toolchain import ToolchainError
from terrace_local.toolchain.places import Places
from terrace_local.toolchain.settings import RunSettings

PROBE = {"argv": ["{binary}", "version"], "pattern": "^v{version}$"}


@pytest.fixture
def probed(hello: dict[str, Any]) -> dict[str, Any]:
    return hello | {"on_path": PROBE}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts a shell script into a folder of the machine, behind what PATH has already."""

    def script(folder: Path | str, body: str, name: str = "hello") -> Path:
        file = tmp_path / folder / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(f"#!/bin/sh\n{body}\n")
        file.chmod(0o755)
        if str(file.parent) not in os.environ["PATH"].split(os.pathsep):
            monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{file.parent}")
        return file

    return script


def test_exact_version_on_path_is_taken(make: Any, probed: dict[str, Any], install: Any) -> None:
    file = install("machine", "echo v1.2.3")
    binary = make(probed).binaries["hello"]
    assert (binary.source, binary.file) == ("path", file)


@pytest.mark.parametrize(
    "body",
    [
        "echo v1.2.4",
        "echo v1.2.3-dispatcher",
        "echo v1.2.30",
        "echo xv1.2.3",
        "echo v1x2x3",
        "exit 1",
        "kill -9 $$",
        "exit 0",
    ],
)
def test_anything_else_on_path_is_ignored(
    make: Any, probed: dict[str, Any], install: Any, body: str
) -> None:
    install("machine", body)
    assert make(probed).binaries["hello"].source == "built"


def test_right_version_further_down_path_is_found(
    make: Any, probed: dict[str, Any], install: Any
) -> None:
    install("first", "echo v9")
    file = install("second", "echo v1.2.3")
    assert make(probed).binaries["hello"].file == file


def test_all_binaries_of_a_tool_must_lie_together(
    make: Any, probed: dict[str, Any], install: Any
) -> None:
    packages = {"hello": "./hello", "major": "./major/v2"}
    tool = probed | {
        "binaries": ["hello", "major"],
        "build": {"module": "tiny", "packages": packages},
    }
    install("machine", "echo v1.2.3")
    assert make(tool).binaries["hello"].source == "built"


def test_probe_may_ask_a_neighbour_in_the_folder(
    make: Any, probed: dict[str, Any], install: Any
) -> None:
    probed["on_path"] = PROBE | {"argv": ["{folder}/engine", "version"]}
    install("machine", "exit 1")
    install("machine", "echo v1.2.3", name="engine")
    assert make(probed).binaries["hello"].source == "path"


def test_our_own_folders_on_path_are_not_the_machine_s(
    make: Any, probed: dict[str, Any], install: Any, places: Places
) -> None:
    install(places.bins / "0123456789abcdef", "echo v1.2.3")
    assert make(probed).binaries["hello"].source == "built"


def test_path_can_be_left_out(
    make: Any, probed: dict[str, Any], install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("machine", "echo v1.2.3")
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "download,build")
    assert make(probed).binaries["hello"].source == "built"


def test_order_can_be_forced(
    make: Any, published: dict[str, Any], site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.publish("hello-1.2.3", b"#!/bin/sh\n")
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "build, download")
    assert make(published).binaries["hello"].source == "built"
    assert site.asked == []


def test_only_path_allowed_and_nothing_there_is_an_error(
    make: Any, probed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", "path")
    with pytest.raises(ToolchainError, match=r"no hello 1\.2\.3 on PATH"):
        make(probed)


@pytest.mark.parametrize("value", ["docker", "path,docker", "path,path", ","])
def test_misspelt_source_is_an_error_that_lists_the_valid_ones(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_TOOLCHAIN_SOURCE", value)
    with pytest.raises(ToolchainError, match="valid are path, download, build"):
        RunSettings.from_environment()


@pytest.mark.parametrize("value", ["0", "-1", "two", "²"])
def test_misspelt_job_count_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRACE_TOOLCHAIN_JOBS", value)
    with pytest.raises(ToolchainError, match="whole number from 1 up"):
        RunSettings.from_environment()


def test_little_memory_means_one_build_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("terrace_local.toolchain.settings.available_memory", lambda: 7 << 30)
    assert RunSettings.from_environment().jobs == 1
    monkeypatch.setattr("terrace_local.toolchain.settings.available_memory", lambda: 8 << 30)
    assert RunSettings.from_environment().jobs == 2


@pytest.mark.parametrize("stage", [0, 4, -1])
def test_stage_that_does_not_exist_is_refused(
    make: Any, probed: dict[str, Any], stage: int
) -> None:
    with pytest.raises(ToolchainError, match="valid stages are 1, 2, 3"):
        make(probed, stage=stage)


def test_only_what_the_stage_needs_is_made(make: Any, hello: dict[str, Any]) -> None:
    build = {"module": "tiny", "packages": {"later": "./major/v2"}}
    later = hello | {"name": "later", "since_stage": 2, "binaries": ["later"], "build": build}
    assert set(make(hello, later, stage=1).binaries) == {"hello"}
    assert set(make(hello, later, stage=2).binaries) == {"hello", "later"}
    assert set(make(hello, later, stage=3).binaries) == {"hello", "later"}


def test_status_tells_where_each_tool_is_and_makes_nothing(
    world: Any, probed: dict[str, Any], install: Any
) -> None:
    def seen() -> tuple[str, bool]:
        [tool] = world.status(probed)
        return tool.source, tool.verified

    assert seen() == ("missing", False)
    assert not world.places.root.exists()
    file = install("machine", "echo v1.2.3")
    assert seen() == ("path", False)
    file.unlink()
    world.ensure(probed)
    assert seen() == ("built", True)


def test_only_the_named_tools_are_made(make: Any, hello: dict[str, Any]) -> None:
    major = {
        "name": "major",
        "binaries": ["major"],
        "build": {"module": "tiny", "packages": {"major": "./major/v2"}},
    }
    assert set(make(hello, hello | major, only=["major"]).binaries) == {"major"}


def test_a_tool_that_is_not_there_is_refused_with_those_that_are(
    make: Any, hello: dict[str, Any]
) -> None:
    with pytest.raises(ToolchainError, match="has no tool pulumo; there are: hello"):
        make(hello, only=["pulumo"])
