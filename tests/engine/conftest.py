"""A machine and an account of its own for each test."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Modules that several test files share; --import-mode=importlib puts no test folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

from harness import Cloud, Engine, Platform, Stack, graph_rows

SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    """An empty account."""
    return Cloud(tmp_path / "cloud")


@pytest.fixture
def engine(tmp_path: Path, cloud: Cloud) -> Engine:
    """Somebody's machine, with nothing on it but the CLI."""
    return Engine(tmp_path / "machine", cloud)


@pytest.fixture(scope="session")
def _stage_one(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """Stage 1 on AWS, brought up once; tests get copies."""
    platform = Platform.new(tmp_path_factory.mktemp("stage-1"), "aws-stage1")
    platform.up()
    return platform


@pytest.fixture
def stage_one(_stage_one: Platform, tmp_path: Path) -> Platform:
    """Stage 1 on AWS as it stands after the first `up`, in an account of the test's own."""
    return _stage_one.copy(tmp_path / "stage-one")


@pytest.fixture(scope="session")
def _substrate_only(tmp_path_factory: pytest.TempPathFactory) -> Platform:
    """The substrate of stage 1, brought up once; tests get copies."""
    platform = Platform.new(tmp_path_factory.mktemp("substrate"), "aws-stage1", disposable=True)
    platform.substrate.up().must_work()
    return platform


@pytest.fixture
def substrate_only(_substrate_only: Platform, tmp_path: Path) -> Platform:
    """Stage 1 with its substrate up and its platform not."""
    return _substrate_only.copy(tmp_path / "substrate-only")


@pytest.fixture
def nothing_yet(tmp_path: Path) -> Platform:
    """The two stacks of stage 1 before the first `up`, set so that nothing outlives them."""
    return Platform.new(tmp_path, "aws-stage1", disposable=True)


@pytest.fixture
def golden() -> Callable[..., None]:
    """``golden(stack, *beneath)`` compares a stack's resource graph with ``snapshots/<stack>.json``
    (``beneath``: the stacks that it stands on); with the environment variable
    ``RECORD_SNAPSHOTS=1`` it records the graph anew."""

    def compare(stack: Stack, *beneath: Stack) -> None:
        path = SNAPSHOTS / f"{stack.name}.json"
        others = [resource for other in beneath for resource in other.resources()]
        rows = graph_rows(stack.resources(), others)
        text = json.dumps(rows, indent=1, sort_keys=True) + "\n"
        text = text.replace(str(stack.engine.home), "~")
        if os.environ.get("RECORD_SNAPSHOTS") == "1":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no {path.name}; record it with RECORD_SNAPSHOTS=1"
        assert json.loads(path.read_text()) == json.loads(text), (
            f"the graph is not {path.name}; if that is meant, record it with RECORD_SNAPSHOTS=1"
        )

    return compare
