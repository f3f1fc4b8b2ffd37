"""Stage 1 on AWS from nothing to an empty account: up, steady, changed, down."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from harness import Cloud, Platform, make_disposable
from harness.engine import PASSPHRASE
from harness.stack import ROOT
from harness.terrace_jobs import CANARY

Golden = Callable[..., None]
GOVERNANCE = ROOT / "services/common/terrace_common/examples/governance.aws.yaml"
# What holds data, or what others hold on to by name: a change of settings never replaces it.
LASTING = (
    "aws:ec2/subnet:Subnet",
    "aws:ec2/vpc:Vpc",
    "aws:ecr/repository:Repository",
    "aws:eks/cluster:Cluster",
    "aws:kms/key:Key",
    "aws:lb/loadBalancer:LoadBalancer",
    "aws:rds/cluster:Cluster",
    "aws:rds/clusterInstance:ClusterInstance",
    "aws:s3/bucket:Bucket",
    "kubernetes:apps/v1:StatefulSet",
    "kubernetes:core/v1:Namespace",
    "kubernetes:core/v1:PersistentVolumeClaim",
)


def test_it_is_steady_once_it_is_up(stage_one: Platform, golden: Golden) -> None:
    for stack in (stage_one.substrate, stage_one.platform):
        stack.must_be_steady()
        assert not stack.refresh().must_work().changes
        golden(stack, stage_one.substrate)


def test_the_state_holds_no_secret(stage_one: Platform) -> None:
    born = [
        item
        for item in stage_one.cloud.items("kubernetes:core/v1:Secret")
        if CANARY in json.dumps(item.inputs)
    ]
    assert born, "no Secret was born in the cluster"
    for stack in (stage_one.substrate, stage_one.platform):
        state = json.dumps(stack.export())
        assert CANARY not in state
        assert PASSPHRASE not in state
        assert '"ciphertext"' not in state, "nothing in the state is worth encrypting"


def test_nothing_was_made_twice(stage_one: Platform) -> None:
    """By the cloud's own books: each thing was created by one call."""
    made = [
        (call.type, call.name) for call in stage_one.cloud.calls("create") if call.outcome == "done"
    ]
    assert len(made) == len(set(made))
    assert not [c for c in stage_one.cloud.changes() if c.operation != "create"]


def test_it_comes_down_to_an_empty_account(stage_one: Platform) -> None:
    """By default the data stay and the databases refuse to go; what the settings say to that is
    one `up` away."""
    stage_one.platform.destroy().must_work()
    refused = stage_one.substrate.destroy().must_fail()
    assert "deletion protection" in refused.errors.lower().replace("deletionprotection", "")
    stage_one.change_aws(make_disposable)
    run = stage_one.substrate.up().must_work()
    stage_one.substrate.destroy().must_work()
    stage_one.cloud.must_be_empty()
    assert not set(run.replaced) & set(LASTING)
    order = stage_one.cloud.order_of_deletes()
    # Who needs a thing goes before it; the simulated cloud refuses the other way round only where
    # the real one does, so the order that merely leaves things behind is asserted here.
    assert _last(order, "TargetGroupBinding") < _first(order, "helm.sh/v3:Release")
    assert _last(order, "eks/nodeGroup:NodeGroup") < _last(order, "eks/addon:Addon")
    assert _last(order, "eks/cluster:Cluster") < _first(order, "ec2/vpc:Vpc")


def test_a_changed_model_list_replaces_nothing_that_lasts(
    stage_one: Platform, tmp_path_factory: pytest.TempPathFactory
) -> None:
    governance = yaml.safe_load(GOVERNANCE.read_text())
    gone = governance["models"].pop()
    file = tmp_path_factory.mktemp("settings") / "governance.yaml"
    file.write_text(yaml.safe_dump(governance, sort_keys=False))
    stage_one.platform.change(terrace__governanceFile=str(file))
    before = _identities(stage_one.cloud)
    run = stage_one.platform.up().must_work()
    assert run.changes, f"without model {gone['name']} the platform is the same"
    assert not set(run.replaced) & set(LASTING)
    assert _identities(stage_one.cloud) == before
    stage_one.platform.must_be_steady()


def test_more_nodes_are_an_update(stage_one: Platform) -> None:
    def more(config: dict[str, Any]) -> None:
        config["terrace:aws"]["nodes"].update(minSize=4, maxSize=6)

    stage_one.change_aws(more)
    before = _identities(stage_one.cloud)
    run = stage_one.substrate.up().must_work()
    assert {step.type for step in run.of("update")} >= {"aws:eks/nodeGroup:NodeGroup"}
    assert not run.replaced
    assert not run.of("delete")
    assert _identities(stage_one.cloud) == before
    stage_one.platform.must_be_steady()


def test_a_platform_without_its_substrate_is_told_so(nothing_yet: Platform) -> None:
    run = nothing_yet.platform.preview().must_fail()
    assert "aws-stage1" in run.errors
    assert "Traceback" not in run.errors
    assert not nothing_yet.cloud.changes()


def test_two_platforms_live_in_one_account(stage_one: Platform) -> None:
    first = _identities(stage_one.cloud)
    second = Platform.new(
        stage_one.substrate.engine.home.parent / "second",
        "aws-stage1",
        name="aws-second",
        cloud=stage_one.cloud,
        disposable=True,
    )

    def another_name(config: dict[str, Any]) -> None:
        config["terrace:aws"]["certificate"]["domain"] = "second.example.com"

    second.change_aws(another_name)
    second.up()
    assert first <= _identities(stage_one.cloud)
    second.down()
    assert _identities(stage_one.cloud) == first
    stage_one.substrate.must_be_steady()
    stage_one.platform.must_be_steady()


@pytest.mark.parametrize("settings", ["aws-private", "aws-existing-vpc"])
def test_the_other_stacks_go_up_and_come_down(
    settings: str, tmp_path_factory: pytest.TempPathFactory, golden: Golden
) -> None:
    both = Platform.new(tmp_path_factory.mktemp(settings), settings, disposable=True)
    both.up()
    for stack in (both.substrate, both.platform):
        stack.must_be_steady()
        golden(stack, both.substrate)
    both.down()
    both.cloud.must_be_empty()


def _identities(cloud: Cloud) -> set[tuple[str, str, str]]:
    """(scope, type, id) of everything that lasts."""
    return {(item.scope, item.type, item.id) for item in cloud.items() if item.type in LASTING}


def _first(order: list[str], kind: str) -> int:
    return next(index for index, one in enumerate(order) if kind in one)


def _last(order: list[str], kind: str) -> int:
    return max(index for index, one in enumerate(order) if kind in one)
