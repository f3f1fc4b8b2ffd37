"""Building from Go modules, and what is said when that can't be done."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from terrace_local.toolchain import ToolchainError
from terrace_local.toolchain.go_build import go_environment
from terrace_local.toolchain.places import Places


def fake_go(folder: Path, script: str) -> str:
    folder.mkdir()
    (folder / "go").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "go").chmod(0o755)
    return str(folder)


def test_tool_is_built_with_its_linker_flags(make: Any, hello: dict[str, Any]) -> None:
    toolchain = make(hello)
    done = subprocess.run([toolchain.path("hello")], capture_output=True, text=True, check=True)
    assert done.stderr == "hello 1.2.3\n"
    assert toolchain.binaries["hello"].source == "built"


def test_binary_has_its_own_name_whatever_go_calls_it(make: Any, hello: dict[str, Any]) -> None:
    build = {"module": "tiny", "packages": {"renamed": "./major/v2"}}
    toolchain = make(hello | {"binaries": ["renamed"], "build": build})
    done = subprocess.run([toolchain.path("renamed")], capture_output=True, text=True, check=True)
    assert done.stderr == "major\n"


def test_tools_of_one_module_are_one_build(make: Any, hello: dict[str, Any], recorder: Any) -> None:
    build = {"module": "tiny", "packages": {"major": "./major/v2"}}
    make(hello, hello | {"name": "major", "binaries": ["major"], "build": build})
    assert recorder.ends == ["tiny (2 binaries): built"]
    assert recorder.left[0] == 2
    assert recorder.left[-1] == 0


def test_sources_are_not_touched_by_a_build(
    make: Any, hello: dict[str, Any], modules_root: Path
) -> None:
    def listing() -> dict[str, bytes]:
        files = (path for path in modules_root.rglob("*") if path.is_file())
        return {str(file): file.read_bytes() for file in files}

    before = listing()
    make(hello)
    assert listing() == before


def test_failed_build_names_binary_step_and_log_and_shows_the_last_lines(
    make: Any, hello: dict[str, Any], places: Places
) -> None:
    build = {"module": "tiny", "packages": {"hello": "./broken"}}
    with pytest.raises(ToolchainError) as caught:
        make(hello | {"build": build})
    said = str(caught.value)
    assert said.startswith("hello: build: no source worked")
    assert "go build" in said
    assert "undefined: undefined" in said
    assert str(places.logs / "go-tiny.log") in said
    assert (places.logs / "go-tiny.log").exists()


def test_failure_also_says_why_the_other_sources_did_not_do(
    make: Any, site: Any, published: dict[str, Any]
) -> None:
    site.publish("hello-1.2.3", b"content", checksum="1" * 64)
    published["build"] = {"module": "tiny", "packages": {"hello": "./broken"}}
    with pytest.raises(ToolchainError, match="wrong checksum"):
        make(published)


def test_one_failed_module_does_not_undo_the_others(
    world: Any, hello: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERRACE_TOOLCHAIN_JOBS", "1")
    folder = world.modules_root / "other"
    folder.mkdir()
    (folder / "go.mod").write_text("module example.test/other\n\ngo 1.21\n")
    (folder / "main.go").write_text("package main\n\nfunc main() { no() }\n")
    build = {"module": "other", "packages": {"other": "."}}
    other = hello | {"name": "other", "binaries": ["other"], "build": build}
    modules = {"tiny": {}, "other": {}}
    with pytest.raises(ToolchainError, match=r"^other: "):
        world.ensure(hello, other, modules=modules)
    (folder / "main.go").write_text("package main\n\nfunc main() {}\n")
    assert set(world.ensure(hello, other, modules=modules).binaries) == {"hello", "other"}
    assert world.recorder.ends.count("hello: built") == 1


def test_missing_go_is_said_with_the_version_that_is_needed(
    make: Any, hello: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(ToolchainError, match=r"no `go` on PATH; install Go 1\.21 or newer"):
        make(hello)


@pytest.mark.parametrize(
    "script",
    [
        "echo go1.19.8",
        "echo go1.9",
        "echo 'go: go.mod requires go >= 1.21 (running go 1.20.1; GOTOOLCHAIN=local)' >&2; exit 1",
    ],
)
def test_go_that_is_too_old_is_said_with_both_versions(
    make: Any,
    hello: dict[str, Any],
    tmp_path: Path,
    script: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", fake_go(tmp_path / "old", script) + ":/usr/bin:/bin")
    with pytest.raises(ToolchainError, match=r"too old \(go.*1\..*install Go 1\.21") as caught:
        make(hello)
    assert "https://go.dev/dl/" in str(caught.value)


def test_go_newer_than_needed_will_do(
    make: Any, hello: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = subprocess.run(["which", "go"], capture_output=True, text=True, check=True).stdout
    script = f'[ "$1" = env ] && {{ echo go1.100.0; exit; }}\nexec {real.strip()} "$@"'
    monkeypatch.setenv("PATH", fake_go(tmp_path / "new", script) + f":{os.environ['PATH']}")
    assert make(hello).binaries["hello"].source == "built"


def test_what_would_change_a_build_is_not_taken_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=mod")
    monkeypatch.setenv("GOOS", "plan9")
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    monkeypatch.setenv("TERRACE_GOCACHE", "/somewhere")
    environment = go_environment()
    assert "GOFLAGS" not in environment
    assert environment["GOOS"] == "linux"
    assert environment["GOTOOLCHAIN"] == "local"
    assert environment["GOCACHE"] == "/somewhere"


def test_generated_and_copied_files_come_from_the_module(
    world: Any, hello: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "fetched"
    (module / "data").mkdir(parents=True)
    (module / "data" / "schema.json").write_text('{"name": "tiny"}')
    (module / "script").write_text("#!/bin/sh\necho script\n")
    real = subprocess.run(["which", "go"], capture_output=True, text=True, check=True).stdout
    answer = f'[ "$1" = mod ] && {{ echo \'{{\'; echo \'"Dir": "{module}"}}\'; exit; }}'
    folder = fake_go(tmp_path / "go-mod", f'{answer}\nexec {real.strip()} "$@"')
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    (world.modules_root / "tiny" / "hello" / "main.go").write_text(
        'package main\n\nimport _ "embed"\n\n//go:embed schema.json\nvar schema string\n\n'
        "func main() { println(schema) }\n"
    )
    generated = {
        "path": "hello/schema.json",
        "module": "example.test/data",
        "from": "data/schema.json",
        "set_json": {"version": "9"},
    }
    copied = {"resolved_in": "tiny", "module": "example.test/data", "from": "script"}
    hello["build"]["copied"] = {"script": copied}
    toolchain = world.ensure(
        hello | {"binaries": ["hello", "script"]}, modules={"tiny": {"generated": [generated]}}
    )
    done = subprocess.run([toolchain.path("hello")], capture_output=True, text=True, check=True)
    assert done.stderr == '{"name":"tiny","version":"9"}\n'
    done = subprocess.run([toolchain.path("script")], capture_output=True, text=True, check=True)
    assert done.stdout == "script\n"
