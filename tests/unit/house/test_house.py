"""The rules of the house that a file listing can break: arrows, locks, licences, names."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {
    "terrace_common": ROOT / "services/common/terrace_common",
    "terrace_gateway": ROOT / "services/gateway/terrace_gateway",
    "terrace_model_simulator": ROOT / "services/model_simulator/terrace_model_simulator",
    "terrace_quota_sync": ROOT / "services/quota_sync/terrace_quota_sync",
    "terrace_translator": ROOT / "services/translator/terrace_translator",
    "terrace_secret_bootstrap": ROOT / "services/secret_bootstrap/terrace_secret_bootstrap",
    "terrace_components": ROOT / "components/terrace_components",
    "terrace_blueprints": ROOT / "blueprints/terrace_blueprints",
    "terrace_local": ROOT / "local/terrace_local",
    "terrace_cli": ROOT / "cli/terrace_cli",
    "terrace_policies": ROOT / "policies/terrace_policies",
}
# Who may import whom (docs/contracts.md). Anything of ours that is not listed is refused.
ALLOWED = {
    "terrace_common": set(),
    "terrace_gateway": {"terrace_common"},
    "terrace_model_simulator": {"terrace_common"},
    "terrace_quota_sync": {"terrace_common"},
    "terrace_translator": set(),
    "terrace_secret_bootstrap": set(),
    "terrace_components": {"terrace_common"},
    "terrace_blueprints": {"terrace_components", "terrace_common", "terrace_policies"},
    "terrace_local": set(),
    "terrace_cli": {"terrace_local", "terrace_common", "terrace_policies"},
    "terrace_policies": {"terrace_common"},
}


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_arrows_point_one_way(package: str) -> None:
    files = list(PACKAGES[package].rglob("*.py"))
    assert files, f"{package} has no source at {PACKAGES[package]}"
    wrong = [
        f"{path.relative_to(ROOT)} imports {module}"
        for path in files
        for module in imported_modules(path)
        if (top := module.split(".")[0]).startswith("terrace_")
        and top != package
        and top not in ALLOWED[package]
    ]
    assert not wrong


def test_only_the_translator_imports_litellm() -> None:
    importers = {
        package
        for package, folder in PACKAGES.items()
        for path in folder.rglob("*.py")
        if any(module.split(".")[0] == "litellm" for module in imported_modules(path))
    }
    assert importers <= {"terrace_translator"}


def test_components_do_not_postpone_annotations() -> None:
    """Pulumi's schema inference reads real types: string annotations break it."""
    wrong = [
        str(path.relative_to(ROOT))
        for path in PACKAGES["terrace_components"].rglob("*.py")
        if "__future__" in set(imported_modules(path))
    ]
    assert not wrong


@pytest.mark.parametrize(
    "lock", sorted((ROOT / "requirements").glob("*.lock")), ids=lambda p: p.name
)
def test_locks_are_pinned_hashed_and_name_no_index(lock: Path) -> None:
    text = lock.read_text()
    entries = [line for line in text.splitlines() if re.match(r"^[A-Za-z0-9]", line)]
    assert entries
    assert all("==" in line for line in entries)
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert all("--hash=sha256:" in block for block in blocks if re.match(r"^[A-Za-z0-9]", block))
    assert not re.search(r"--(extra-)?index-url|--find-links|https?://", text)
    assert not re.search(r"^litellm[-_]enterprise", text, re.M | re.I), "proprietary"


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_each_package_says_what_it_is(package: str) -> None:
    project = tomllib.loads((PACKAGES[package].parent / "pyproject.toml").read_text())["project"]
    assert project["name"] == package.replace("_", "-")
    assert project["license"] == "Apache-2.0"
    assert project["requires-python"] == ">=3.11"
    assert (PACKAGES[package] / "py.typed").exists()


def test_every_test_folder_is_run_by_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
    listed = {Path(word) for word in re.findall(r"tests/[\w/]+", makefile)}
    missing = {str(f) for f in folders if not any(f == p or p in f.parents for p in listed)}
    assert missing <= {"tests/bench"}  # measures, asserts nothing


def test_no_file_carries_a_place_that_only_one_machine_has() -> None:
    """A registry's host or a home folder in a committed file works for nobody else."""
    hosts = [
        "py" + "pi.org",
        "python" + "hosted",
        "proxy.go" + "lang.org",
        "registry" + ".npmjs",
        "deb.deb" + "ian.org",
    ]
    homes = ["/wo" + "rk/", "/ro" + "ot/"]
    wrong = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        wrong += [f"{path.relative_to(ROOT)}: {word}" for word in hosts + homes if word in text]
    assert not wrong


def test_source_files_have_one_subject() -> None:
    long = [
        f"{path.relative_to(ROOT)} has {lines} lines"
        for folder in PACKAGES.values()
        for path in folder.rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 400
    ]
    assert not long
