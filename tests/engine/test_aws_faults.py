"""Stage 1 on AWS when something goes wrong in the middle: what is said, and that `up` heals it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from harness import Cloud, Platform, Stack

NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
CLUSTER = "aws:eks/cluster:Cluster"
RELEASE = "kubernetes:helm.sh/v3:Release"
DATABASE = "aws:rds/cluster:Cluster"


def made_once(cloud: Cloud) -> None:
    """By the cloud's books: of nothing are there two that nobody has deleted."""
    made = {
        (call.scope, call.type, call.name, call.id)
        for call in cloud.calls("create")
        if call.outcome in ("done", "half-made")
    }
    gone = {
        (call.scope, call.type, call.name, call.id)
        for call in cloud.calls("delete")
        if call.outcome == "done"
    }
    count = Counter((scope, kind, name) for scope, kind, name, _ in made - gone)
    twice = {one: number for one, number in count.items() if number > 1}
    assert made
    assert not twice, f"made twice: {twice}"


def test_a_stack_that_another_run_holds_is_left_alone(nothing_yet: Platform) -> None:
    stack, cloud = nothing_yet.substrate, nothing_yet.cloud
    cloud.fail("latency", on="aws:kms/key:Key", seconds=20.0)
    running = stack.start("up", "--yes", "--skip-preview")
    running.wait_until(lambda: bool(cloud.calls("create", "aws:kms/key:Key")))
    before = cloud.counts()
    refused = stack.destroy().must_fail()
    while "failed to load checkpoint: EOF" in refused.output:
        # The file backend reads before it looks at the lock, and met a checkpoint being written.
        refused = stack.destroy().must_fail()
    assert "the stack is currently locked" in refused.output
    assert not refused.planned
    running.kill()
    assert before - cloud.counts() == Counter()
    assert not cloud.calls("delete")


def test_a_killed_update_heals(nothing_yet: Platform) -> None:
    """Killed twice: while the cloud holds a call back, and while it has made a thing whose id the
    engine does not know yet. Each time the account is asked, and nothing is made twice."""
    stack, cloud = nothing_yet.substrate, nothing_yet.cloud
    cloud.fail("throttle", on=CLUSTER, seconds=60.0)
    killed_when(stack, lambda: bool(cloud.calls("create", CLUSTER)))
    assert not cloud.items(CLUSTER)
    cloud.fail("latency", on=DATABASE, seconds=60.0)
    killed_when(stack, lambda: bool(cloud.items(DATABASE)))
    stack.up().must_work()
    stack.must_be_steady()
    made_once(cloud)


def killed_when(stack: Stack, condition: Callable[[], bool]) -> None:
    """`up`, kill -9 of everything as soon as the condition holds, and what a person does then."""
    cloud = stack.engine.cloud
    running = stack.start("up", "--yes", "--skip-preview")
    running.wait_until(condition)
    running.kill()
    cloud.heal()
    stack.restore_checkpoint()
    assert "the stack is currently locked" in stack.refresh().must_fail().output
    stack.cancel()

    def find(kind: str, name: str) -> str | None:
        ids = [item.id for item in cloud.items(kind) if item.name == name]
        assert len(ids) <= 1
        return ids[0] if ids else None

    stack.settle_pending(find)
    stack.refresh().must_work()


def test_throttling_is_waited_out(nothing_yet: Platform) -> None:
    cloud = nothing_yet.cloud
    cloud.fail("throttle", operation="*", remaining=25)
    nothing_yet.substrate.up().must_work()
    assert [c for c in cloud.calls() if c.outcome == "ThrottlingException"]
    made_once(cloud)


@pytest.mark.parametrize(
    ("kind", "on"),
    [
        ("capacity", NODE_GROUP),
        ("timeout", "aws:rds/clusterInstance:ClusterInstance"),
    ],
)
def test_a_create_that_fails_in_the_middle_is_healed_by_the_next_up(
    nothing_yet: Platform, kind: str, on: str
) -> None:
    stack, cloud = nothing_yet.substrate, nothing_yet.cloud
    cloud.fail(kind, on=on)
    run = stack.up().must_fail()
    assert [step.type for step in run.failed] == [on]
    stack.up().must_work()
    made_once(cloud)


# Each of another kind: what everything needs, what takes long, what others hang from.
SAMPLE = (
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:eks/addon:Addon",
    "aws:lb/listener:Listener",
)
PLATFORM_SAMPLE = (RELEASE, "kubernetes:apps/v1:StatefulSet")


@pytest.mark.parametrize("kind", SAMPLE)
def test_a_half_built_substrate_can_be_destroyed(nothing_yet: Platform, kind: str) -> None:
    half_built_comes_down(nothing_yet.substrate, kind)
    nothing_yet.cloud.must_be_empty()


@pytest.mark.parametrize("kind", PLATFORM_SAMPLE)
def test_a_half_built_platform_can_be_destroyed(substrate_only: Platform, kind: str) -> None:
    before = substrate_only.cloud.counts()
    half_built_comes_down(substrate_only.platform, kind)
    # Helm leaves the definitions that a chart brought.
    left = substrate_only.cloud.counts() - before
    assert set(left) <= {"kubernetes:apiextensions.k8s.io/v1:CustomResourceDefinition"}


@pytest.mark.long
def test_every_half_built_state_can_be_destroyed(
    stage_one: Platform, substrate_only: Platform, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The create of each type fails in turn: what stands by then comes down again."""
    for kind in types_of(stage_one.substrate):
        new = Platform.new(tmp_path_factory.mktemp("half"), "aws-stage1", disposable=True)
        half_built_comes_down(new.substrate, kind)
        new.cloud.must_be_empty()
    for kind in types_of(stage_one.platform):
        copy = substrate_only.copy(tmp_path_factory.mktemp("half"))
        half_built_comes_down(copy.platform, kind)
        copy.substrate.destroy().must_work()
        copy.cloud.must_be_empty()


def types_of(stack: Stack) -> list[str]:
    """The types of what a provider makes."""
    types = {one["type"] for one in stack.resources() if one["custom"]}
    return sorted(kind for kind in types if not kind.startswith("pulumi:"))


def half_built_comes_down(stack: Stack, kind: str) -> None:
    stack.engine.cloud.fail("error", on=kind, message="not today")
    run = stack.up().must_fail()
    assert kind in {step.type for step in run.failed}, f"no {kind} was tried"
    assert "not today" in run.errors
    stack.engine.cloud.heal()
    stack.destroy().must_work()
    assert not stack.resources()


def test_a_cluster_that_is_gone_is_named_at_destroy(stage_one: Platform) -> None:
    """Somebody deleted the cluster by hand. The platform's stack says so; it comes down when it is
    told that the cluster will not come back, and the Helm release, which is not forgotten that
    way, is taken out of the state."""
    cloud, stack = stage_one.cloud, stage_one.platform
    (cluster,) = cloud.items(CLUSTER)
    cloud.remove(cluster)
    run = stack.destroy().must_fail()
    assert "configured Kubernetes cluster is unreachable" in run.errors
    assert "PULUMI_K8S_DELETE_UNREACHABLE" in run.errors
    gone = {**stack.engine.extra, "PULUMI_K8S_DELETE_UNREACHABLE": "true"}
    told = stack.on(replace(stack.engine, extra=gone))
    run = told.destroy().must_fail()
    assert {step.type for step in run.failed} == {RELEASE}
    (release,) = [one["urn"] for one in told.resources() if one["type"] == RELEASE]
    told.forget(release)
    told.destroy().must_work()
    assert not told.resources()
