"""docs/runbooks/aws.md, word for word: what it says to do after an accident is done, and heals."""

import re
import subprocess
from pathlib import Path

from harness import Platform, Stack

PAGE = Path(__file__).resolve().parents[2] / "docs/runbooks/aws.md"
KEY = "aws:kms/key:Key"
CLUSTER = "aws:eks/cluster:Cluster"


def blocks(label: str) -> list[str]:
    found = re.findall(rf"^```sh {label}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found, f"no block {label!r} in {PAGE.name}"
    return found


def shell(stack: Stack, commands: str, **variables: str) -> str:
    """Output of commands in the stack's clone, where PATH has Pulumi and `terrace`."""
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", commands],
        cwd=stack.folder,
        env={**stack.engine.environment, "TERRACE_REPOSITORY": str(stack.folder), **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


def test_after_a_kill_what_is_there_is_taken_in_and_nothing_is_made_twice(
    nothing_yet: Platform,
) -> None:
    stack, cloud = nothing_yet.substrate, nothing_yet.cloud
    cloud.fail("latency", on=KEY, seconds=60.0)
    running = stack.start("up", "--yes", "--skip-preview")
    running.wait_until(lambda: bool(cloud.items(KEY)))
    running.kill()
    stack.restore_checkpoint()
    cloud.heal()
    give_up, refresh = blocks("killed")
    lines = [line.split(" ") for line in shell(stack, give_up).splitlines() if "urn:" in line]
    pending = [words[1:] for words in lines if words[0] == "creating"]
    assert pending, "the kill left nothing pending"
    shell(stack, refresh)
    assert not stack.export().get("pending_operations")
    taken = 0
    for kind, name, _, parent in pending:
        for item in cloud.items(kind):
            if item.name == name:
                [command] = blocks("import")
                shell(stack, command, TYPE=kind, NAME=name, ID=item.id, PARENT=parent)
                taken += 1
    assert taken, "nothing of what was pending was made"
    stack.up().must_work()
    stack.must_be_steady()
    assert sorted(stack.ids(KEY).values()) == sorted(item.id for item in cloud.items(KEY))
    protected = [one["urn"] for one in stack.resources() if one.get("protect")]
    assert not protected, "an import protects unless it is told not to"


def test_down_to_an_empty_account(stage_one: Platform) -> None:
    """From the committed settings, which keep the data."""
    [commands] = blocks("empty")
    shell(stage_one.substrate, commands)
    assert not stage_one.substrate.resources()
    assert not stage_one.platform.resources()
    stage_one.cloud.must_be_empty()


def test_a_cluster_that_was_deleted_by_hand(stage_one: Platform) -> None:
    [cluster] = stage_one.cloud.items(CLUSTER)
    stage_one.cloud.remove(cluster)
    [commands] = blocks("gone")
    shell(stage_one.platform, commands)
    assert not stage_one.platform.resources()
    stage_one.substrate.refresh().must_work()
    assert not stage_one.substrate.ids(CLUSTER)
