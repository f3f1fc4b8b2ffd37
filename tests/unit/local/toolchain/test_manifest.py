"""The shipped manifest is complete and agrees with the Go modules; a wrong one is refused."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from terrace_local.toolchain import ManifestError
from terrace_local.toolchain.manifest import (
    MANIFEST_FILE,
    MODULES_ROOT,
    Manifest,
    Tool,
    load_manifest,
)

MANIFEST = load_manifest()
TOOLS = pytest.mark.parametrize("tool", MANIFEST.tools, ids=lambda tool: tool.name)


def pinned(module: str, dependency: str) -> str:
    go_mod = (MODULES_ROOT / module / "go.mod").read_text()
    match = re.search(rf"^(?:require )?\s*{re.escape(dependency)} v(\S+)", go_mod, re.MULTILINE)
    assert match, f"{module}/go.mod does not require {dependency}"
    return match.group(1)


@TOOLS
def test_every_tool_can_be_had_without_the_internet(tool: Tool) -> None:
    assert tool.build is not None
    folder = MODULES_ROOT / tool.build.module
    assert (folder / "go.mod").is_file()
    assert (folder / "go.sum").stat().st_size > 0


@TOOLS
def test_versions_are_those_of_go_mod(tool: Tool) -> None:
    build = tool.build
    assert build is not None
    if build.requires is None:
        assert all(package.startswith(".") for package in build.packages.values())
        return
    assert pinned(build.module, build.requires) == (build.module_version or tool.version)


@TOOLS
def test_copied_files_come_from_the_version_that_the_tool_says(tool: Tool) -> None:
    assert tool.build is not None
    for copied in tool.build.copied.values():
        assert pinned(copied.resolved_in, copied.module) == tool.version


@TOOLS
def test_local_packages_exist(tool: Tool) -> None:
    assert tool.build is not None
    for package in tool.build.packages.values():
        if package.startswith("."):
            assert list((MODULES_ROOT / tool.build.module / package).glob("*.go"))


def test_version_strings_in_linker_flags_are_those_of_the_tools() -> None:
    by_module: dict[str, set[str]] = {}
    for tool in MANIFEST.tools:
        assert tool.build is not None
        by_module.setdefault(tool.build.module, set()).add(tool.version)
    for name, module in MANIFEST.modules.items():
        words = shlex.split(module.ldflags)
        stated = {word.rpartition("=")[2].removeprefix("v") for word in words if "ersion=" in word}
        assert stated <= by_module[name]


def test_generated_schema_states_the_provider_version() -> None:
    provider = next(tool for tool in MANIFEST.tools if tool.name == "pulumi-resource-kubernetes")
    stated = [f.set_json["version"] for f in MANIFEST.modules["provider-kubernetes"].generated[:1]]
    assert stated == [provider.version]


def test_every_official_source_is_https_with_a_checksum_file() -> None:
    downloads = [tool.download for tool in MANIFEST.tools if tool.download]
    assert downloads
    for download in downloads:
        assert download.url.startswith("https://")
        assert download.checksum_url.startswith("https://")


def test_no_checksum_is_pinned_that_nobody_has_seen() -> None:
    assert not re.search(r"\b[0-9a-f]{64}\b", MANIFEST_FILE.read_text())


def test_stage_one_has_a_cluster_and_an_engine() -> None:
    binaries = {binary for tool in MANIFEST.for_stage(1) for binary in tool.binaries}
    assert {"pulumi", "kubelet", "kube-apiserver", "etcd", "containerd", "ctr", "pause"} <= binaries


def test_a_tool_on_request_is_for_who_names_it() -> None:
    asked = {tool.name for tool in MANIFEST.tools if tool.on_request}
    assert asked == {"pulumi-language-yaml"}
    for stage in (1, 2, 3):
        assert not asked & {tool.name for tool in MANIFEST.for_stage(stage)}
    chosen = MANIFEST.for_stage(1, only=("pulumi", "pulumi-language-yaml"))
    assert [tool.name for tool in chosen] == ["pulumi", "pulumi-language-yaml"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('colour = "red"', "tools.0.colour: Extra inputs are not permitted"),
        ('version = "latest"', "tools.0.version"),
        ("since_stage = 4", "tools.0.since_stage"),
        ('binaries = ["x", "y"]', "does not give exactly"),
        ('build = { module = "nowhere", packages = { x = "./x" } }', "no module 'nowhere'"),
    ],
)
def test_wrong_manifest_is_refused_and_names_the_property(
    tmp_path: Path, line: str, said: str
) -> None:
    good = {
        "name": 'name = "x"',
        "version": 'version = "1"',
        "since_stage": "since_stage = 1",
        "binaries": 'binaries = ["x"]',
        "build": 'build = { module = "m", packages = { x = "./x" } }',
    }
    lines = good | {line.partition(" ")[0]: line}
    file = tmp_path / "manifest.toml"
    file.write_text("\n".join(["version = 1", "[modules.m]", "[[tools]]", *lines.values()]))
    with pytest.raises(ManifestError) as caught:
        load_manifest(file)
    assert said in str(caught.value)
    assert str(file) in str(caught.value)


def test_manifest_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "manifest.toml"
    file.write_text("version = ")
    with pytest.raises(ManifestError, match=r"manifest\.toml"):
        load_manifest(file)


def test_tool_without_any_source_is_refused(
    manifest_of: Callable[..., Manifest], hello: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match="has no source"):
        manifest_of(hello | {"build": None})


@pytest.mark.parametrize("url", ["http://example.test/x", "ftp://example.test/x", "/etc/passwd"])
def test_download_in_the_clear_is_refused(
    manifest_of: Callable[..., Manifest], published: dict[str, Any], url: str
) -> None:
    published["download"]["checksum_url"] = url
    with pytest.raises(ValidationError, match="must be an https URL"):
        manifest_of(published)


def test_two_tools_may_not_bring_the_same_binary(
    manifest_of: Callable[..., Manifest], hello: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError, match="binary named twice: hello"):
        manifest_of(hello, hello | {"name": "other"})
