"""`terrace up|preview|down --stack`: the real command, the real engine, a simulated account."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from harness import Cloud, Engine, Platform, Stack

NAME = "aws-stage1"
KUBECONFIG = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "my-cluster",
    "contexts": [{"name": "my-cluster", "context": {"cluster": "c", "user": "u"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://192.0.2.10:6443"}}],
    "users": [{"name": "u", "user": {}}],
}
_LONGEST = 300  # seconds that a command may take before the test gives up on it


def start(stack: Stack, *arguments: str) -> subprocess.Popen[str]:
    """`terrace ARGUMENTS` on the stack's machine, for the clone that the stack is of."""
    return subprocess.Popen(
        [sys.executable, "-m", "terrace_cli", *arguments],
        env={**stack.engine.environment, "TERRACE_REPOSITORY": str(stack.folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # What runs the tests may be a job in the background, which ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509  no threads
    )


def terrace(platform: Platform | Stack, *arguments: str) -> tuple[int, str]:
    """Exit code, and what the command and Pulumi said."""
    stack = platform if isinstance(platform, Stack) else platform.substrate
    process = start(stack, *arguments)
    said, _ = process.communicate(timeout=_LONGEST)
    return process.returncode, said


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _LONGEST
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"waited {_LONGEST} s in vain"
        time.sleep(0.05)


def settings(stack: Stack) -> dict[str, object]:
    return yaml.safe_load(stack.settings.read_text())["config"]


def test_from_no_stack_at_all_to_a_preview_of_the_substrate(nothing_yet: Platform) -> None:
    """The stack that is previewed is made in the backend, and nothing in the account."""
    for stack in (nothing_yet.substrate, nothing_yet.platform):
        stack.engine.pulumi("stack", "rm", "--yes", stack.name, "--preserve-config",
                            folder=stack.folder)  # fmt: skip
    before = nothing_yet.cloud.items()
    code, said = terrace(nothing_yet, "preview", "--stack", NAME)
    assert code == 0, said
    assert "aws:eks:NodeGroup" in said
    assert f"{NAME}-platform was not previewed" in said
    assert "only be previewed once the substrate stands" in said
    assert nothing_yet.cloud.items() == before
    listed = nothing_yet.substrate.engine.pulumi("stack", "ls", folder=nothing_yet.substrate.folder)
    assert NAME in listed
    assert f"{NAME}-platform" not in listed


def test_a_failing_create_stops_before_the_platform_and_a_second_up_goes_on(
    nothing_yet: Platform,
) -> None:
    nothing_yet.cloud.fail("capacity", on="aws:eks/nodeGroup:*")
    code, said = terrace(nothing_yet, "up", "--stack", NAME, "--yes")
    assert code == 5, said
    assert "InsufficientInstanceCapacity" in said
    assert f"{NAME}-platform was not started" in said
    assert not nothing_yet.platform.resources()

    code, said = terrace(nothing_yet, "up", "--stack", NAME, "--stage", "1", "--yes")
    assert code == 0, said
    assert said.index(f"pulumi up {NAME} (1 of 2, substrate)") < said.index(
        f"pulumi up {NAME}-platform (2 of 2, platform)"
    )
    assert len(nothing_yet.cloud.items("aws:eks/cluster:Cluster")) == 1
    assert nothing_yet.platform.outputs()["gateway_url"] == "https://gateway.example.com"


def test_a_platform_whose_substrate_stands_is_previewed_too(stage_one: Platform) -> None:
    code, said = terrace(stage_one, "preview", "--stack", NAME)
    assert code == 0, said
    assert f"pulumi preview {NAME}-platform (2 of 2, platform)" in said
    assert "was not previewed" not in said


def test_down_of_a_protected_stack_destroys_nothing_until_its_steps_are_taken(
    stage_one: Platform,
) -> None:
    """Settings as committed: cluster and database are protected."""
    substrate, cloud = stage_one.substrate, stage_one.cloud
    before, calls = cloud.items(), len(cloud.calls())
    code, said = terrace(stage_one, "down", "--stack", NAME, "--yes")
    assert code == 1, said
    assert "Nothing was destroyed" in said
    assert cloud.items() == before
    assert not [call for call in cloud.calls()[calls:] if call.operation == "delete"]

    steps = re.findall(r"^  ((?:pulumi|terrace) .*)$", said, re.MULTILINE)
    assert [step.split()[1] for step in steps] == ["config", "config", "up", "down"], said
    for step in steps[:-1]:
        words = shlex.split(step)[1:]
        options = ["--yes", "--skip-preview"] if words[0] == "up" else []
        substrate.engine.pulumi(*words, *options, folder=substrate.folder)
    calls = len(cloud.calls())
    code, said = terrace(stage_one, *shlex.split(steps[-1])[1:], "--yes")
    assert code == 0, said
    order = [call.type for call in cloud.calls()[calls:] if call.operation == "delete"]
    last_of_the_platform = max(i for i, t in enumerate(order) if t.startswith("kubernetes:core/"))
    first_of_the_substrate = min(i for i, t in enumerate(order) if t.startswith("aws:rds/"))
    assert last_of_the_platform < first_of_the_substrate
    assert not stage_one.platform.resources()
    assert not stage_one.substrate.resources()


def test_wrong_settings_of_the_platform_stop_before_the_substrate(nothing_yet: Platform) -> None:
    nothing_yet.platform.change(terrace__gatewayy={"minReplicas": 2})
    calls = len(nothing_yet.cloud.calls())
    code, said = terrace(nothing_yet, "up", "--stack", NAME, "--yes")
    assert code == 2
    assert f"Pulumi.{NAME}-platform.yaml" in said
    assert "terrace:gateway" in said, "the nearest key is named"
    assert len(nothing_yet.cloud.calls()) == calls
    assert not nothing_yet.substrate.resources()


def test_a_stack_that_another_run_holds_is_left_alone(nothing_yet: Platform) -> None:
    nothing_yet.cloud.fail("latency", on="aws:ec2/vpc:*", seconds=20)
    other = nothing_yet.substrate.start("up", "--yes", "--skip-preview")
    other.wait_until(lambda: bool(nothing_yet.cloud.calls("create", "aws:ec2/vpc:")))
    before = nothing_yet.substrate.settings.read_bytes()
    code, said = terrace(nothing_yet, "up", "--stack", NAME, "--stage", "1", "--yes")
    assert code == 4, said
    assert f"The stack {NAME} is locked by another run" in said
    assert "process" in said.partition("is locked by another run")[2]
    assert f"pulumi cancel --stack {NAME}" in said
    assert nothing_yet.substrate.settings.read_bytes() == before
    assert not nothing_yet.platform.resources()
    other.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_order(nothing_yet: Platform, number: signal.Signals) -> None:
    nothing_yet.cloud.fail("latency", on="aws:ec2/vpc:*", seconds=3)
    process = start(nothing_yet.substrate, "up", "--stack", NAME, "--yes")
    wait_until(lambda: bool(nothing_yet.cloud.calls("create", "aws:ec2/vpc:")), process)
    os.kill(process.pid, number)
    said, _ = process.communicate(timeout=_LONGEST)
    assert process.returncode == 130, said
    assert "/terrace_cli/" not in said, "a traceback of its own (Pulumi's program may print one)"
    # What was being made when it was told to stop is in the state: nothing is made twice later.
    [vpc] = nothing_yet.cloud.items("aws:ec2/vpc:Vpc")
    assert list(nothing_yet.substrate.ids("aws:ec2/vpc:Vpc").values()) == [vpc.id]
    assert not nothing_yet.cloud.items("aws:eks/cluster:Cluster")
    assert not nothing_yet.platform.resources()


def test_down_of_a_stack_that_is_not_there(nothing_yet: Platform, tmp_path: Path) -> None:
    del tmp_path
    for stack in (nothing_yet.substrate, nothing_yet.platform):
        stack.engine.pulumi("stack", "rm", "--yes", stack.name, "--preserve-config",
                            folder=stack.folder)  # fmt: skip
    code, said = terrace(nothing_yet, "down", "--stack", NAME, "--yes")
    assert code == 6
    assert f"There is no stack {NAME}" in said


def test_an_existing_cluster_is_one_stack(engine: Engine, cloud: Cloud) -> None:
    kubeconfig = engine.home / ".kube" / "config"
    kubeconfig.parent.mkdir()
    kubeconfig.write_text(json.dumps(KUBECONFIG))
    stack = Stack.of_terrace(engine, "existing")
    code, said = terrace(stack, "preview", "--stack", "existing")
    assert code == 0, said
    assert cloud.items() == []
    code, said = terrace(stack, "up", "--stack", "existing", "--yes")
    assert code == 0, said
    assert "pulumi up existing (1 of 1)" in said
    stack.must_be_steady()
    code, said = terrace(stack, "down", "--stack", "existing", "--yes")
    assert code == 0, said
    cloud.must_be_empty()
