"""The provider's own behaviour: unknowns, names, differences, ARNs, look-ups, faults."""

from pathlib import Path
from typing import Any

import pytest
from account import Account, Refused
from standing import ROLE, SUBNET, VPC, Standing, document, trust

from simulated_cloud import faults
from simulated_cloud.seed import add_item
from simulated_cloud.values import UNKNOWN


def test_unknown_inputs_pass_every_check_and_stay_unknown(account: Account) -> None:
    outputs = account.create(
        SUBNET,
        {"vpcId": UNKNOWN, "cidrBlock": UNKNOWN, "availabilityZone": "us-east-1a"},
        preview=True,
    )
    assert outputs["vpcId"] is UNKNOWN
    assert outputs["arn"] is UNKNOWN
    assert outputs["mapPublicIpOnLaunch"] is False
    assert account.inventory.items() == []


def test_a_preview_and_its_update_choose_one_name(account: Account) -> None:
    inputs = {"assumeRolePolicy": trust("ec2.amazonaws.com")}
    names = {
        account.create(ROLE, inputs, "team", preview=preview)["name"] for preview in (True, False)
    }
    assert len(names) == 1
    assert names.pop().startswith("team-")


def test_what_the_service_adds_inside_of_an_input_is_unknown_before(standing: Standing) -> None:
    inputs = {"roleArn": standing.cluster_role, "vpcConfig": {"subnetIds": standing.subnets}}
    cluster = "aws:eks/cluster:Cluster"
    planned = standing.account.create(cluster, inputs, "new", preview=True)["vpcConfig"]
    assert planned["clusterSecurityGroupId"] is UNKNOWN
    assert planned["vpcId"] is UNKNOWN
    made = standing.account.create(cluster, inputs, "new")
    assert made["vpcConfig"]["vpcId"] == standing.vpc
    lifecycle = standing.account.provider.lifecycle
    again = lifecycle.preview(cluster, {**inputs, "version": "1.35"}, made, inputs)
    assert again["vpcConfig"]["vpcId"] == standing.vpc


@pytest.mark.parametrize(
    ("type", "old", "new", "replaces"),
    [
        (VPC, {"cidrBlock": "10.0.0.0/16"}, {"cidrBlock": "10.1.0.0/16"}, ["cidrBlock"]),
        (VPC, {"cidrBlock": "10.0.0.0/16"}, {"cidrBlock": "10.0.0.0/16", "tags": {"a/b": "c"}}, []),
        (
            "aws:eks/cluster:Cluster",
            {"version": "1.34", "roleArn": "a"},
            {"version": "1.35", "roleArn": "a"},
            [],
        ),
        (
            "aws:eks/cluster:Cluster",
            {"version": "1.34", "roleArn": "a"},
            {"version": "1.34", "roleArn": "b"},
            ["roleArn"],
        ),
        (
            "aws:eks/cluster:Cluster",
            {"kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.1.0.0/16"}},
            {"kubernetesNetworkConfig": {"serviceIpv4Cidr": "10.2.0.0/16"}},
            ["kubernetesNetworkConfig"],
        ),
        (
            "aws:eks/nodeGroup:NodeGroup",
            {"scalingConfig": {"minSize": 1}},
            {"scalingConfig": {"minSize": 2}},
            [],
        ),
        (
            "aws:eks/nodeGroup:NodeGroup",
            {"launchTemplate": {"id": "lt-1", "version": "1"}},
            {"launchTemplate": {"id": "lt-1", "version": "2"}},
            [],
        ),
        (
            "aws:eks/nodeGroup:NodeGroup",
            {"subnetIds": ["a"]},
            {"subnetIds": ["a", "b"]},
            ["subnetIds"],
        ),
        ("aws:rds/cluster:Cluster", {"kmsKeyId": "a"}, {"kmsKeyId": "b"}, ["kmsKeyId"]),
        ("aws:lb/targetGroup:TargetGroup", {"port": 80}, {"port": 81}, ["port"]),
        (
            "aws:s3/bucket:Bucket",
            {"objectLockEnabled": False},
            {"objectLockEnabled": True},
            ["objectLockEnabled"],
        ),
    ],
)
def test_changes_that_make_a_new_one(
    account: Account, type: str, old: Any, new: Any, replaces: list[str]
) -> None:
    answer = account.diff(type, old, new)
    assert list(answer.replaces) == replaces
    assert list(answer.diffs)
    assert not list(account.diff(type, old, old).diffs)


def test_a_name_that_the_program_gave_is_deleted_before_it_is_made_again(account: Account) -> None:
    old, new = {"name": "mine", "path": "/"}, {"name": "mine", "path": "/team/"}
    assert account.diff(ROLE, old, new).deleteBeforeReplace
    made = {"name": "thing-0a1b2c3", "path": "/"}
    assert not account.diff(ROLE, made, {**made, "path": "/team/"}).deleteBeforeReplace


def test_a_type_that_does_not_exist_is_named_with_the_nearest(account: Account) -> None:
    _, failures = account.check("aws:ec2/vpc:Vpcs", {})
    assert "did you mean 'aws:ec2/vpc:Vpc'" in failures[""]


def test_a_type_without_a_model_is_simulated_from_the_sdk(account: Account) -> None:
    made = account.create("aws:sns/topic:Topic", {"displayName": "news", "tags": {"a": "b"}})
    assert made["arn"].startswith("arn:aws:sns:us-east-1:123456789012:topic/")
    assert made["tagsAll"] == {"a": "b"}
    _, failures = account.check("aws:sns/topic:Topic", {"displayname": "news"})
    assert "did you mean 'displayName'" in failures["displayname"]


@pytest.mark.parametrize(
    ("region", "partition", "suffix"),
    [
        ("us-east-1", "aws", "amazonaws.com"),
        ("cn-north-1", "aws-cn", "amazonaws.com.cn"),
        ("us-gov-west-1", "aws-us-gov", "amazonaws.com"),
    ],
)
def test_arns_know_their_partition(
    tmp_path: Path, region: str, partition: str, suffix: str
) -> None:
    account = Account(tmp_path, region=region)
    assert account.create(VPC, {"cidrBlock": "10.0.0.0/16"})["arn"].startswith(
        f"arn:{partition}:ec2:{region}:123456789012:vpc/"
    )
    found = account.invoke("aws:index/getPartition:getPartition")
    assert (found["partition"], found["dnsSuffix"]) == (partition, suffix)
    other = (
        "arn:aws-cn:iam::123456789012:role/a"
        if partition == "aws"
        else "arn:aws:iam::123456789012:role/a"
    )
    _, failures = account.check(
        "aws:eks/accessEntry:AccessEntry", {"clusterName": "c", "principalArn": other}
    )
    assert "partition" in failures["principalArn"]


def test_a_region_of_its_own_per_resource(account: Account) -> None:
    made = account.create(VPC, {"cidrBlock": "10.0.0.0/16", "region": "eu-west-1"})
    assert ":eu-west-1:" in made["arn"]
    assert account.inventory.items()[0].scope == "123456789012/eu-west-1"


@pytest.mark.parametrize(
    ("config", "property"),
    [({"region": "us-east-9"}, "region"), ({"region": "Frankfurt"}, "region")],
)
def test_a_region_that_does_not_exist_is_refused(
    account: Account, config: dict[str, str], property: str
) -> None:
    problems = list(account.provider.check_config(config))
    assert [problem.property for problem in problems] == [property]
    assert list(account.provider.check_config({"region": "eu-central-1"})) == []


def test_bedrock_knows_which_models_a_region_offers(account: Account) -> None:
    sonnet = "anthropic.claude-sonnet-4-5-20250929-v1:0"
    profile = account.invoke(
        "aws:bedrock/getInferenceProfile:getInferenceProfile", inferenceProfileId=f"us.{sonnet}"
    )
    assert {model["modelArn"].split(":")[3] for model in profile["models"]} == {
        "us-east-1",
        "us-east-2",
        "us-west-2",
    }
    everywhere = account.invoke(
        "aws:bedrock/getInferenceProfile:getInferenceProfile", inferenceProfileId=f"global.{sonnet}"
    )
    assert f"arn:aws:bedrock:::foundation-model/{sonnet}" in [
        model["modelArn"] for model in everywhere["models"]
    ]
    with pytest.raises(Refused, match="not found in us-east-1"):
        account.invoke(
            "aws:bedrock/getInferenceProfile:getInferenceProfile", inferenceProfileId=f"eu.{sonnet}"
        )
    with pytest.raises(Refused, match="is invalid in us-east-1"):
        account.invoke(
            "aws:bedrockfoundation/getModel:getModel", modelId="mistral.mistral-large-2407-v1:0"
        )
    offered = account.invoke(
        "aws:bedrockfoundation/getModels:getModels",
        byInferenceType="ON_DEMAND",
        byProvider="amazon",
    )
    assert "amazon.nova-lite-v1:0" in [model["modelId"] for model in offered["modelSummaries"]]
    assert sonnet not in [model["modelId"] for model in offered["modelSummaries"]]


def test_look_ups_see_what_is_there(standing: Standing) -> None:
    account = standing.account
    assert account.invoke("aws:ec2/getVpc:getVpc", id=standing.vpc)["cidrBlock"] == "10.0.0.0/16"
    found = account.invoke(
        "aws:ec2/getSubnets:getSubnets", filters=[{"name": "vpc-id", "values": [standing.vpc]}]
    )
    assert set(found["ids"]) == set(standing.subnets)
    cluster = account.invoke("aws:eks/getCluster:getCluster", name=standing.cluster)
    assert cluster["accessConfigs"][0]["authenticationMode"] == "API"
    assert (
        account.invoke("aws:route53/getZone:getZone", name="example.com.")["zoneId"]
        == standing.zone
    )
    for function, arguments in (
        ("aws:ec2/getVpc:getVpc", {"id": "vpc-0"}),
        ("aws:ec2/getSubnet:getSubnet", {"id": "subnet-0"}),
        ("aws:eks/getCluster:getCluster", {"name": "nothing"}),
        ("aws:route53/getZone:getZone", {"name": "example.org"}),
        ("aws:ssm/getParameter:getParameter", {"name": "/nothing"}),
    ):
        with pytest.raises(Refused):
            account.invoke(function, **arguments)


def test_a_function_that_is_not_known_is_named_with_the_nearest(account: Account) -> None:
    with pytest.raises(Refused, match="did you mean 'aws:ec2/getVpc:getVpc'"):
        account.invoke("aws:ec2/getVpcc:getVpcc")


def test_policy_documents_are_built_as_the_provider_does(account: Account) -> None:
    statements = [
        {
            "actions": ["s3:GetObject"],
            "resources": ["*"],
            "conditions": [{"test": "Bool", "variable": "aws:SecureTransport", "values": ["true"]}],
        }
    ]
    built = account.invoke("aws:iam/getPolicyDocument:getPolicyDocument", statements=statements)[
        "json"
    ]
    _, failures = account.check("aws:iam/policy:Policy", {"policy": built})
    assert failures == {}
    assert '"Effect": "Allow"' in built


def test_things_that_exist_already_are_checked_too(account: Account) -> None:
    add_item(account.inventory, VPC, "vpc-0123", {"cidrBlock": "10.0.0.0/16"})
    assert account.invoke("aws:ec2/getVpc:getVpc", id="vpc-0123")["ownerId"] == "123456789012"
    with pytest.raises(ValueError, match="did you mean 'cidrBlock'"):
        add_item(account.inventory, VPC, "vpc-0124", {"cidrblock": "10.0.0.0/16"})
    with pytest.raises(ValueError, match="does not exist"):
        add_item(
            account.inventory, SUBNET, "subnet-1", {"vpcId": "vpc-9", "cidrBlock": "10.0.0.0/24"}
        )


NETWORK = {"cidrBlock": "10.0.0.0/16"}


def test_a_throttled_call_is_tried_again(account: Account) -> None:
    faults.order(account.inventory, faults.Fault("throttle", remaining=3))
    account.create(VPC, NETWORK)
    assert [call.outcome for call in account.inventory.calls()] == ["ThrottlingException"] * 3 + [
        "done"
    ]
    faults.order(account.inventory, faults.Fault("throttle", remaining=99))
    with pytest.raises(Refused, match="Rate exceeded"):
        account.create(VPC, NETWORK)


@pytest.mark.parametrize(
    ("kind", "words", "made"),
    [
        ("capacity", "InsufficientInstanceCapacity", False),
        ("error", "InternalFailure", False),
        ("lost-answer", "RequestTimeout", True),
        ("timeout", "timeout while waiting", True),
    ],
)
def test_faults_leave_what_the_real_ones_leave(
    account: Account, kind: str, words: str, made: bool
) -> None:
    faults.order(account.inventory, faults.Fault(kind, type="aws:ec2/*", name="th*"))
    with pytest.raises(Refused, match=words):
        account.create(VPC, NETWORK)
    assert len(account.inventory.items(type=VPC)) == made
    account.create(VPC, NETWORK)  # it was for one call


def test_faults_are_for_what_they_name(account: Account) -> None:
    faults.order(account.inventory, faults.Fault("error", type="aws:eks/*"))
    faults.order(account.inventory, faults.Fault("error", name="other"))
    faults.order(account.inventory, faults.Fault("dependency-violation", operation="delete"))
    id = account.create(VPC, NETWORK)["id"]
    with pytest.raises(Refused, match="DependencyViolation"):
        account.delete(VPC, id)
    assert [fault.remaining for fault in faults.ordered(account.inventory)] == [1, 1]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (faults.Fault("crash"), "throttle"),
        (faults.Fault("error", operation="make"), "create"),
        (faults.Fault("error", remaining=0), "at least 1"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(
    account: Account, fault: faults.Fault, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        faults.order(account.inventory, fault)


@pytest.mark.parametrize(
    ("type", "inputs", "property", "words"),
    [
        (VPC, {"cidrBlock": "10.0.0.0/16", "tags": {"a": "x" * 300}}, "tags['a']", "256"),
        (VPC, {"cidrBlock": "10.0.0.0/16", "tags": {str(n): "" for n in range(51)}}, "tags", "50"),
        (
            "aws:iam/policy:Policy",
            {"policy": document("s3:GetObject", resource="arn:aws:s3:::a/" + "x" * 7000)},
            "policy",
            "6144",
        ),
    ],
)
def test_what_is_too_long_is_refused(
    account: Account, type: str, inputs: Any, property: str, words: str
) -> None:
    _, failures = account.check(type, inputs)
    assert words in failures[property]
