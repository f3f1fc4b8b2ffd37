"""The machine's own backend with a stack of AWS in it: seen in Pulumi's real files, kept by `down`,
and moved by the commands that the refusal names."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from harness import Engine, Stack

from terrace_cli import local_backend
from terrace_cli.errors import CliError
from terrace_cli.pulumi_stack import PulumiStack
from terrace_cli.tools import bin_directory

BUCKETS = """
import pulumi
import pulumi_aws as aws

for name in "ab":
    aws.s3.Bucket(name)
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERRACE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "state/pulumi").mkdir(parents=True)
    return tmp_path / "state"


@pytest.fixture
def tour(engine: Engine, state: Path) -> Engine:
    """Somebody's shell after `eval "$(terrace env)"`."""
    backend = {
        "PULUMI_BACKEND_URL": f"file://{state / 'pulumi'}",
        "TERRACE_STATE_DIR": str(state),
    }
    return replace(engine, extra=backend)


def test_a_stack_of_aws_in_the_machines_backend_is_kept_until_it_is_moved(
    engine: Engine, tour: Engine
) -> None:
    stack = Stack.of_program(tour, "aws-a", BUCKETS, **{"aws:region": "us-east-1"})
    local_backend.refuse_to_delete_other_stacks(stack.folder)
    stack.up().must_work()
    with pytest.raises(CliError) as refused:
        local_backend.refuse_to_delete_other_stacks(stack.folder)
    assert "also keeps aws-a (2 resources)." in str(refused.value)

    for command in (
        "stack export --stack aws-a --file aws-a.json",
        "stack rm --force --preserve-config aws-a",
    ):
        assert f"`pulumi {command}`" in str(refused.value)
        confirmed = ["--yes"] if " rm " in command else []
        tour.pulumi(*command.split(), *confirmed, folder=stack.folder)
    local_backend.refuse_to_delete_other_stacks(stack.folder)
    moved = replace(stack, engine=engine)
    for command in ("stack init aws-a", "stack import --stack aws-a --file aws-a.json"):
        assert f"`pulumi {command}`" in str(refused.value)
        engine.pulumi(*command.split(), folder=stack.folder)
    moved.must_be_steady()


@pytest.mark.parametrize(
    ("cut", "reason"),
    [
        ("stacks/*/local.json.attrs", "failed to load checkpoint: EOF"),
        ("meta.yaml.attrs", "EOF"),
        ("stacks/*/local.json", "unexpected end of JSON input"),
    ],
)
def test_a_state_that_a_kill_cut_short_is_read_by_the_next_up(
    *, tour: Engine, state: Path, cut: str, reason: str
) -> None:
    """Pulumi writes side files of a state in place; a power cut may take the state's own end."""
    stack = Stack.of_program(tour, "local", BUCKETS, **{"aws:region": "us-east-1"})
    stack.up().must_work()
    (file,) = (state / "pulumi/.pulumi").glob(cut)
    file.write_bytes(b"")
    process = tour.start(["stack", "export", "--stack", "local"], stack.folder)
    assert reason in process.communicate(timeout=300)[0]

    said: list[str] = []
    PulumiStack(stack.folder, bin_directory(), said.append).ensure_selected()
    assert len(said) == 1
    assert str(file) in said[0]
    tour.pulumi("stack", "export", "--stack", "local", folder=stack.folder)
    stack.up().must_work()
    stack.must_be_steady()


def test_the_machines_state_has_no_side_files(tour: Engine, state: Path) -> None:
    engine = replace(tour, extra=tour.extra | {"PULUMI_BACKEND_URL": local_backend.backend_url()})
    stack = Stack.of_program(engine, "local", BUCKETS, **{"aws:region": "us-east-1"})
    stack.up().must_work()
    stack.must_be_steady()
    assert list((state / "pulumi").rglob("local.json"))
    assert not list((state / "pulumi").rglob("*.attrs"))


def test_what_was_destroyed_keeps_nobody_from_going_down(tour: Engine) -> None:
    stack = Stack.of_program(tour, "aws-a", BUCKETS, **{"aws:region": "us-east-1"})
    stack.up().must_work()
    stack.destroy().must_work()
    assert local_backend.other_stacks(stack.folder) == []


def test_terrace_makes_no_stack_of_aws_in_the_machines_backend(tour: Engine, state: Path) -> None:
    folder = Path(__file__).resolve().parents[2]
    before = {file: file.read_bytes() for file in folder.glob("Pulumi.*.yaml")}
    (state / "pulumi").rmdir()
    state.rmdir()
    for arguments in (("preview",), ("up", "--yes")):
        done = subprocess.run(
            [sys.executable, "-m", "terrace_cli", *arguments, "--stack", "aws-stage1"],
            env={**tour.environment, "TERRACE_REPOSITORY": str(folder)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 2
        assert "aws-stage1 cannot be kept in this machine's backend" in done.stderr
        assert done.stderr.count("\n") == 1
    assert not state.exists()
    assert {file: file.read_bytes() for file in folder.glob("Pulumi.*.yaml")} == before
