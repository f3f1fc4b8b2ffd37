"""A private cluster for the tests: own state directory, so that a platform's data on this machine
is never touched.

Addresses and links are the machine's, so a cluster that runs here is stopped first (its data kept)
and started again after.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from terrace_local import cluster, toolchain

# Modules that several test files share; --import-mode=importlib puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

STATE = Path("/var/lib/terrace-tests")
RUN = Path("/run/terrace-tests")

REUSE = "TERRACE_CLUSTER_REUSE"  # "1": a standing platform is lent to the tests
FRESH = "TERRACE_CLUSTER_FRESH"  # "1": nothing on this machine is worth keeping


def say(text: str) -> None:
    print(f"  {text}", flush=True)


@pytest.fixture(scope="session")
def binaries() -> Path:
    """The toolchain: TERRACE_TEST_TOOLCHAIN, or the one that `terrace up` would use.

    With its Debian packages: on a new machine these tests run before the first `terrace up`.
    """
    given = os.environ.get("TERRACE_TEST_TOOLCHAIN")
    with toolchain.ConsoleProgress() as progress:
        toolchain.ensure_debian_packages(progress=progress)
        if given:
            return Path(given)
        return toolchain.ensure(1, progress=progress).bin_dir


@pytest.fixture(scope="session")
def paths() -> cluster.Paths:
    return cluster.Paths(STATE, RUN)


@pytest.fixture(scope="session")
def quiet_machine(binaries: Path, paths: cluster.Paths) -> Iterator[None]:
    """No cluster on the machine while the tests use it.

    One that ran before runs again after them; on a machine where nothing is worth keeping
    (TERRACE_CLUSTER_FRESH=1) it is removed.
    """
    found = cluster.status()
    runs = found.state in {"running", "degraded"}
    fresh = os.environ.get(FRESH) == "1"
    if runs or (fresh and found.state != "absent"):
        cluster.down(keep_data=not fresh, progress=say, clone=found.holder_clone)
    cluster.down(keep_data=False, progress=say, paths=paths)
    yield
    cluster.down(keep_data=False, progress=say, paths=paths)
    if runs and not fresh:
        cluster.up(binaries, progress=say, clone=found.holder_clone)


@pytest.fixture
def running(quiet_machine: None, binaries: Path, paths: cluster.Paths) -> cluster.ClusterInfo:
    """The private cluster, ready, whatever the test before did to it."""
    return cluster.up(binaries, progress=say, paths=paths)


class Kubectl:
    """kubectl against the private cluster."""

    def __init__(self, binary: Path, kubeconfig: Path) -> None:
        self._argv = [str(binary), f"--kubeconfig={kubeconfig}", "--request-timeout=30s"]

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        done = self.attempt(*arguments, text=text)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def attempt(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._argv, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )


@pytest.fixture
def kubectl(running: cluster.ClusterInfo, binaries: Path) -> Kubectl:
    return Kubectl(binaries / "kubectl", running.kubeconfig)


# --- the whole platform (test_platform_*) ---


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In this tier order matters: a platform is made once, then broken, then taken down."""
    here = Path(__file__).parent
    ours = [item for item in items if item.path.parent == here]
    places = [index for index, item in enumerate(items) if item.path.parent == here]
    ours.sort(key=lambda item: (item.path.name, item.reportinfo()[1] or 0))
    for index, item in zip(places, ours, strict=True):
        items[index] = item


@pytest.fixture(scope="session")
def machine_before(paths: cluster.Paths) -> Iterator[dict[str, set[str]] | None]:
    """The machine before any platform; None when TERRACE_CLUSTER_REUSE=1 lends us a running one.

    Without that, data of a platform on this machine is never risked: the tests refuse to begin,
    unless TERRACE_CLUSTER_FRESH=1 says that nothing on it is worth keeping (CI, where a session
    that was killed may have left one).
    """
    from machine_snapshot import take_snapshot
    from platform_bench import terrace

    # Tests of the cluster alone, earlier in this session, have left theirs on the same addresses.
    cluster.down(keep_data=False, progress=say, paths=paths)
    if os.environ.get(REUSE) == "1":
        if cluster.status().state == "stopped":
            terrace("up")
        yield None
        return
    found = cluster.status()
    if os.environ.get(FRESH) == "1" and found.state != "absent":
        cluster.down(keep_data=False, progress=say, clone=found.holder_clone)
    if cluster.status().state != "absent":
        pytest.fail(
            "this machine has a platform with data: run `terrace down`, or set "
            f"{REUSE}=1 to run the tests that leave it standing"
        )
    yield take_snapshot()
    terrace("down", "--yes", expect=None)


@pytest.fixture
def own_platform(machine_before: dict[str, set[str]] | None) -> dict[str, set[str]]:
    """For tests that take the platform down: only for one that this session made."""
    if machine_before is None:
        pytest.skip(f"{REUSE}=1: the platform is lent")
    return machine_before


@pytest.fixture
def empty_machine(own_platform: dict[str, set[str]]) -> None:
    """No platform and no data of one."""
    from platform_bench import terrace

    del own_platform
    terrace("down", "--yes")


@pytest.fixture
def platform(machine_before: dict[str, set[str]] | None) -> "Platform":  # noqa: F821
    """A running platform; brought up where the test before took it down."""
    from platform_bench import Platform, terrace

    if machine_before is not None and terrace("status", expect=None).returncode != 0:
        terrace("up")
    return Platform()
