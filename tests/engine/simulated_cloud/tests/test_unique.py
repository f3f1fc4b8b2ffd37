"""What can exist once: in a region, an account, or the world."""

import json

import pytest
from account import Account, Refused
from refusal import Make, name_of
from standing import GROUP, ROLE, Standing, document

# type, inputs; a second one of the same is refused with these words
TWICE: list[tuple[str, Make, str]] = [
    ("aws:s3/bucket:Bucket", lambda s: {"bucket": "one-and-only"}, "BucketAlreadyOwnedByYou"),
    (
        ROLE,
        lambda s: {
            "name": "one",
            "assumeRolePolicy": (
                document("sts:AssumeRole", Principal={"Service": "ec2.amazonaws.com"}).replace(
                    ', "Resource": "*"', ""
                )
            ),
        },
        "EntityAlreadyExists",
    ),
    (
        "aws:eks/cluster:Cluster",
        lambda s: {"roleArn": s.cluster_role, "vpcConfig": {"subnetIds": s.subnets}, "name": "one"},
        "ResourceInUseException",
    ),
    (
        "aws:eks/accessEntry:AccessEntry",
        lambda s: {"clusterName": s.cluster, "principalArn": s.pod_role},
        "ResourceInUseException",
    ),
    (
        "aws:eks/addon:Addon",
        lambda s: {"clusterName": s.cluster, "addonName": "vpc-cni"},
        "ResourceInUseException",
    ),
    (
        "aws:bedrockmodel/invocationLoggingConfiguration:InvocationLoggingConfiguration",
        lambda s: {"loggingConfig": {"s3Config": {"bucketName": s.bucket}}},
        "SimulatedConflict",
    ),
    (GROUP, lambda s: {"vpcId": s.vpc, "name": "one"}, "InvalidGroup.Duplicate"),
    ("aws:cloudwatch/logGroup:LogGroup", lambda s: {"name": "/one"}, "exists already"),
    (
        "aws:ecr/repository:Repository",
        lambda s: {"name": "one"},
        "RepositoryAlreadyExistsException",
    ),
    (
        "aws:lb/targetGroup:TargetGroup",
        lambda s: {"name": "one", "port": 80, "protocol": "HTTP", "vpcId": s.vpc},
        "exists already",
    ),
    (
        "aws:kms/alias:Alias",
        lambda s: {"name": "alias/one", "targetKeyId": s.key},
        "AlreadyExistsException",
    ),
    (
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        lambda s: {
            "securityGroupId": s.group,
            "ipProtocol": "tcp",
            "fromPort": 1,
            "toPort": 1,
            "cidrIpv4": "10.0.0.0/8",
        },
        "InvalidPermission.Duplicate",
    ),
]


@pytest.mark.parametrize(("type", "make", "words"), TWICE, ids=name_of)
def test_what_must_be_unique_is_refused_the_second_time(
    standing: Standing, type: str, make: Make, words: str
) -> None:
    standing.account.create(type, make(standing), "first")
    with pytest.raises(Refused, match=r"exists already|is not available") as refusal:
        standing.account.create(type, make(standing), "second")
    assert words in str(refusal.value)


def test_bucket_names_are_global_and_role_names_are_not(account: Account) -> None:
    elsewhere = Account(account.inventory.directory, region="eu-west-1", account="999999999999")
    account.create("aws:s3/bucket:Bucket", {"bucket": "the-name"})
    with pytest.raises(Refused, match="BucketAlreadyExists"):
        elsewhere.create("aws:s3/bucket:Bucket", {"bucket": "the-name"})
    policy = json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Principal": {"Service": "ec2.amazonaws.com"},
                    "Action": "sts:AssumeRole",
                }
            ],
        }
    )
    for one in (account, elsewhere):
        one.create(ROLE, {"name": "same", "assumeRolePolicy": policy})
    with pytest.raises(Refused, match="EntityAlreadyExists"):
        Account(account.inventory.directory, region="us-west-2").create(
            ROLE, {"name": "same", "assumeRolePolicy": policy}
        )


def test_a_secret_keeps_its_name_until_its_window_ends(account: Account) -> None:
    secret = "aws:secretsmanager/secret:Secret"
    account.delete(secret, account.create(secret, {"name": "kept"})["id"])
    with pytest.raises(Refused, match="scheduled for deletion"):
        account.create(secret, {"name": "kept"})
    account.delete(
        secret, account.create(secret, {"name": "gone", "recoveryWindowInDays": 0})["id"]
    )
    account.create(secret, {"name": "gone"})
