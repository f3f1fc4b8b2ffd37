"""What cannot be deleted, and what goes with what."""

import json
from typing import Any

import pytest
from account import Account, Refused
from standing import GROUP, SUBNET, VPC, Standing

from simulated_cloud.aws.ecr import push_image

CLUSTER = "aws:eks/cluster:Cluster"
NODE_GROUP = "aws:eks/nodeGroup:NodeGroup"
BALANCER = "aws:lb/loadBalancer:LoadBalancer"
BUCKET = "aws:s3/bucket:Bucket"


def refused(account: Account, type: str, id: str) -> str:
    with pytest.raises(Refused) as refusal:
        account.delete(type, id)
    return str(refusal.value)


def test_a_network_with_children_stays(standing: Standing) -> None:
    assert "DependencyViolation" in refused(standing.account, VPC, standing.vpc)


@pytest.mark.parametrize("type", [SUBNET, GROUP, VPC])
def test_a_network_interface_holds_subnet_group_and_network(account: Account, type: str) -> None:
    ids = {VPC: account.create(VPC, {"cidrBlock": "10.0.0.0/16"})["id"]}
    ids[SUBNET] = account.create(SUBNET, {"vpcId": ids[VPC], "cidrBlock": "10.0.0.0/24"})["id"]
    ids[GROUP] = account.create(GROUP, {"vpcId": ids[VPC]})["id"]
    interface = "aws:ec2/networkInterface:NetworkInterface"
    id = account.create(interface, {"subnetId": ids[SUBNET], "securityGroups": [ids[GROUP]]})["id"]
    assert "DependencyViolation" in refused(account, type, ids[type])
    account.delete(interface, id)
    for each in (SUBNET, GROUP, VPC):
        account.delete(each, ids[each])
    assert account.inventory.items() == []  # the default group went with its network


def test_a_group_named_in_another_ones_rule_stays(standing: Standing) -> None:
    account = standing.account
    second = account.create(GROUP, {"vpcId": standing.vpc}, "second")["id"]
    rule = {
        "securityGroupId": second,
        "ipProtocol": "-1",
        "referencedSecurityGroupId": standing.group,
    }
    account.create("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", rule)
    assert "DependencyViolation" in refused(account, GROUP, standing.group)


def test_a_cluster_with_nodes_stays_and_holds_its_subnets(standing: Standing) -> None:
    account = standing.with_cni().account
    group = account.create(NODE_GROUP, standing.node_group())["id"]
    assert "ResourceInUseException" in refused(account, CLUSTER, standing.cluster)
    account.delete(NODE_GROUP, group)
    assert "DependencyViolation" in refused(account, SUBNET, standing.subnets[0])
    account.delete(CLUSTER, standing.cluster)
    account.delete(SUBNET, standing.subnets[0])
    assert account.inventory.items(type="aws:eks/addon:Addon") == []


def test_nodes_without_their_cni_leak_interfaces_that_hold_the_network(standing: Standing) -> None:
    account = standing.with_cni().account
    group = account.create(NODE_GROUP, standing.node_group())["id"]
    account.delete("aws:eks/addon:Addon", str(standing.cni))
    account.delete(NODE_GROUP, group)
    account.delete(CLUSTER, standing.cluster)
    assert "networkInterface" in refused(account, SUBNET, standing.subnets[0])


def protected(standing: Standing) -> list[tuple[str, dict[str, Any], str]]:
    login = {
        "engine": "aurora-postgresql",
        "masterUsername": "a",
        "manageMasterUserPassword": True,
        "skipFinalSnapshot": True,
    }
    cluster = {"roleArn": standing.cluster_role, "vpcConfig": {"subnetIds": standing.subnets}}
    return [
        (CLUSTER, {**cluster, "deletionProtection": True}, "deletionProtection"),
        (
            BALANCER,
            {"subnets": standing.subnets, "enableDeletionProtection": True},
            "enableDeletionProtection",
        ),
        ("aws:rds/cluster:Cluster", {**login, "deletionProtection": True}, "deletionProtection"),
    ]


def test_deletion_protection_must_be_turned_off_first(standing: Standing) -> None:
    account = standing.account
    for type, inputs, switch in protected(standing):
        made = account.create(type, inputs, "protected")
        assert "protection" in refused(account, type, made["id"])
        names = {
            key: made[key]
            for key in ("name", "clusterIdentifier")
            if key in made and type != BALANCER
        }
        if type == BALANCER:
            names = {"name": made["name"]}
        account.update(type, made["id"], {**inputs, **names, switch: False}, "protected")
        account.delete(type, made["id"])


def test_a_database_needs_a_name_for_its_last_snapshot(account: Account) -> None:
    type = "aws:rds/cluster:Cluster"
    login = {"engine": "aurora-postgresql", "masterUsername": "a", "manageMasterUserPassword": True}
    made = account.create(type, login)["id"]
    assert "finalSnapshotIdentifier" in refused(account, type, made)


def test_a_database_with_instances_stays(account: Account) -> None:
    type, instance = "aws:rds/cluster:Cluster", "aws:rds/clusterInstance:ClusterInstance"
    login = {
        "engine": "aurora-postgresql",
        "masterUsername": "a",
        "manageMasterUserPassword": True,
        "skipFinalSnapshot": True,
    }
    made = account.create(type, login)
    inputs = {
        "clusterIdentifier": made["id"],
        "engine": "aurora-postgresql",
        "instanceClass": "db.r8g.large",
    }
    one = account.create(instance, inputs)["id"]
    assert "still contains instances" in refused(account, type, made["id"])
    account.delete(instance, one)
    account.delete(type, made["id"])
    assert account.inventory.items() == []  # its secret went with it


def test_a_bucket_with_objects_stays_unless_told(account: Account) -> None:
    for name, more, words in (
        ("plain", {}, "BucketNotEmpty"),
        ("locked", {"objectLockEnabled": True, "forceDestroy": True}, "Object Lock"),
    ):
        bucket = account.create(BUCKET, more, name)["id"]
        account.create(
            "aws:s3/bucketObjectv2:BucketObjectv2", {"bucket": bucket, "key": "a", "content": "b"}
        )
        assert words in refused(account, BUCKET, bucket)
    forced = account.create(BUCKET, {"forceDestroy": True}, "forced")["id"]
    account.create(
        "aws:s3/bucketObjectv2:BucketObjectv2", {"bucket": forced, "key": "a", "content": "b"}
    )
    account.delete(BUCKET, forced)
    assert account.inventory.items(id=f"{forced}/a") == []


def test_a_repository_with_images_stays_unless_told(account: Account) -> None:
    type = "aws:ecr/repository:Repository"
    for name, more in (("plain", {}), ("forced", {"forceDelete": True})):
        id = account.create(type, more, name)["id"]
        push_image(account.inventory, account.inventory.items(type=type, id=id)[0], "1.0.0")
        if more:
            account.delete(type, id)
        else:
            assert "RepositoryNotEmptyException" in refused(account, type, id)


def test_a_zone_with_records_stays(standing: Standing) -> None:
    record = {"zoneId": standing.zone, "name": "a", "type": "A", "ttl": 1, "records": ["10.0.0.1"]}
    made = standing.account.create("aws:route53/record:Record", record)["id"]
    assert "HostedZoneNotEmpty" in refused(standing.account, "aws:route53/zone:Zone", standing.zone)
    standing.account.delete("aws:route53/record:Record", made)
    standing.account.delete("aws:route53/zone:Zone", standing.zone)


def test_a_role_with_policies_stays(standing: Standing) -> None:
    name = standing.node_role.rsplit("/", 1)[1]
    attachment = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
    inputs = {"role": name, "policyArn": "arn:aws:iam::aws:policy/AmazonEKSWorkerNodePolicy"}
    made = standing.account.create(attachment, inputs)["id"]
    assert "DeleteConflict" in refused(standing.account, "aws:iam/role:Role", name)
    standing.account.delete(attachment, made)
    standing.account.delete("aws:iam/role:Role", name)


def test_a_key_is_only_scheduled_for_deletion(account: Account) -> None:
    id = account.create("aws:kms/key:Key", {})["id"]
    account.delete("aws:kms/key:Key", id)
    assert account.inventory.items() == []
    assert [item.id for item in account.inventory.pending("aws:kms/key:Key")] == [id]


def test_a_target_group_and_a_certificate_in_use_stay(standing: Standing) -> None:
    account = standing.account
    balancer = account.create(BALANCER, {"subnets": standing.subnets})["arn"]
    group = account.create(
        "aws:lb/targetGroup:TargetGroup", {"port": 80, "protocol": "HTTP", "vpcId": standing.vpc}
    )["arn"]
    actions = [{"type": "forward", "targetGroupArn": group}]
    account.create(
        "aws:lb/listener:Listener",
        {"loadBalancerArn": balancer, "port": 80, "protocol": "HTTP", "defaultActions": actions},
    )
    assert "ResourceInUse" in refused(account, "aws:lb/targetGroup:TargetGroup", group)
    account.delete(BALANCER, balancer)
    account.delete("aws:lb/targetGroup:TargetGroup", group)


def test_deleting_what_is_gone_already_is_no_error(account: Account) -> None:
    id = account.create(VPC, {"cidrBlock": "10.0.0.0/16"})["id"]
    account.delete(VPC, id)
    account.delete(VPC, id)
    outcomes = [(call.operation, call.outcome) for call in account.inventory.calls()]
    assert outcomes == [("create", "done"), ("delete", "done"), ("delete", "done")]


def test_deletion_reads_documents_of_any_shape(account: Account) -> None:
    document = {
        "Version": "2012-10-17",
        "Statement": {
            "Effect": "Allow",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Action": "sts:AssumeRole",
        },
    }
    id = account.create("aws:iam/role:Role", {"assumeRolePolicy": json.dumps(document)})["id"]
    account.delete("aws:iam/role:Role", id)
    assert account.inventory.items() == []
