"""A key that seals captures, and the ledger's anchors, on a platform that stands: AWS takes the
rights, the rule book has nothing to say, nothing that lasts is replaced, and they go again."""

import json
from typing import Any

from harness import Cloud, Platform
from test_aws_stage_one import LASTING
from test_policy_pack import PACK, policy_events

from terrace_policies.checking import check_state
from terrace_policies.configuration import Configuration

SIDS = {"SealCaptures", "Anchors", "ListAnchors", "EncryptAnchors"}


def test_they_come_to_a_platform_that_stands_and_go_again(stage_one: Platform) -> None:
    cloud, platform = stage_one.cloud, stage_one.platform
    assert rights(cloud) == {}
    stage_one.change_aws(lambda config: config["terrace:aws"].update(keys={"captures": True}))
    run = stage_one.substrate.up().must_work()
    assert {step.type for step in run.of("create")} == {"aws:kms/key:Key", "aws:kms/alias:Alias"}
    assert not run.of("delete")

    platform.change(terrace__gateway={"minReplicas": 2, "anchors": {"retentionDays": 30}})
    run = platform.up().must_work()
    assert not {step.type for step in run.of("delete")} & set(LASTING)
    platform.must_be_steady()
    for stack in (stage_one.substrate, platform):
        run = stack.preview("--policy-pack", str(PACK)).must_work()
        assert [event["message"] for event in policy_events(run)] == []
        report = check_state(json.dumps({"deployment": stack.export()}), "export", Configuration())
        assert [result.text for result in (*report.violations, *report.unchecked)] == []
    keys = {
        item.inputs["description"].rpartition(" ")[2]: item.outputs["arn"]
        for item in cloud.items("aws:kms/key:Key")
    }
    [bucket] = [
        item.outputs["bucket"]
        for item in cloud.items("aws:s3/bucket:Bucket")
        if item.inputs.get("objectLockEnabled")
    ]
    allowed = rights(cloud)
    assert set(allowed) == SIDS
    assert allowed["SealCaptures"]["Resource"] == [keys["captures"]]
    assert allowed["EncryptAnchors"]["Resource"] == [keys["objects"]]
    assert allowed["Anchors"]["Resource"] == [f"arn:aws:s3:::{bucket}/anchors/*"]
    assert "s3:PutObjectRetention" in allowed["Anchors"]["Action"]
    told = guard(cloud)
    assert told["TERRACE_CAPTURE_KMS_KEY_ARN"] == keys["captures"]
    assert told["TERRACE_ANCHOR_LOCATION"] == f"s3://{bucket}"
    assert told["TERRACE_ANCHOR_RETENTION_DAYS"] == "30"

    platform.change(terrace__gateway={"minReplicas": 2})
    platform.up().must_work()
    assert set(rights(cloud)) == {"SealCaptures"}
    assert "TERRACE_ANCHOR_LOCATION" not in guard(cloud)


def rights(cloud: Cloud) -> dict[str, Any]:
    """What the gateway's role may do besides calling models, as AWS has it."""
    [policy] = [
        item.inputs["policy"]
        for item in cloud.items("aws:iam/rolePolicy:RolePolicy")
        if "bedrock:InvokeModel" in item.inputs["policy"]
    ]
    return {s["Sid"]: s for s in json.loads(policy)["Statement"] if s["Sid"] in SIDS}


def guard(cloud: Cloud) -> dict[str, str | None]:
    """The environment of the guard's container."""
    [gateway] = [
        item
        for item in cloud.items("kubernetes:apps/v1:StatefulSet")
        if item.inputs["metadata"]["name"] == "gateway"
    ]
    [container] = gateway.inputs["spec"]["template"]["spec"]["containers"]
    return {entry["name"]: entry.get("value") for entry in container["env"]}
