"""Databases, buckets, load balancers, names and models: what is refused at Create."""

from typing import Any

import pytest
from refusal import MISSING_KEY, Case, refused_then_made
from standing import Standing, document


def database(s: Standing, **more: Any) -> dict[str, Any]:
    return {
        "engine": "aurora-postgresql",
        "masterUsername": "terrace",
        "manageMasterUserPassword": True,
        "skipFinalSnapshot": True,
        "vpcSecurityGroupIds": [s.group],
        **more,
    }


def bucket_policy(s: Standing, resource: str, **more: Any) -> dict[str, Any]:
    return {
        "bucket": s.bucket,
        "policy": document(
            "s3:GetObject", resource=resource, **{"Principal": {"AWS": s.node_role}, **more}
        ),
    }


def with_record(s: Standing) -> str:
    """The certificate, its validation record in the zone."""
    record = s.account.read("aws:acm/certificate:Certificate", s.certificate).properties[
        "domainValidationOptions"
    ][0]
    inputs = {
        "zoneId": s.zone,
        "name": record["resourceRecordName"],
        "type": "CNAME",
        "ttl": 60,
        "records": [record["resourceRecordValue"]],
    }
    s.account.create("aws:route53/record:Record", inputs, "validation")
    return s.certificate


CASES: list[Case] = [
    (
        "aws:rds/subnetGroup:SubnetGroup",
        lambda s: {"subnetIds": s.subnets},
        lambda s: {"subnetIds": s.subnets[:1]},
        "DBSubnetGroupDoesNotCoverEnoughAZs",
    ),
    (
        "aws:rds/cluster:Cluster",
        database,
        lambda s: database(s, dbSubnetGroupName="nothing"),
        "DBSubnetGroupNotFoundFault",
    ),
    (
        "aws:rds/cluster:Cluster",
        database,
        lambda s: database(s, storageEncrypted=True, kmsKeyId=MISSING_KEY),
        "KMSKeyNotAccessible",
    ),
    (
        "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration",
        lambda s: {
            "bucket": s.account.create(
                "aws:s3/bucket:Bucket", {"objectLockEnabled": True}, "locked"
            )["id"]
        },
        lambda s: {"bucket": s.bucket},
        "InvalidBucketState",
    ),
    (
        "aws:s3/bucketPolicy:BucketPolicy",
        lambda s: bucket_policy(s, f"arn:aws:s3:::{s.bucket}/*"),
        lambda s: bucket_policy(s, "arn:aws:s3:::other/*"),
        "MalformedPolicy",
    ),
    (
        "aws:s3/bucketVersioning:BucketVersioning",
        lambda s: {"bucket": s.bucket, "versioningConfiguration": {"status": "Enabled"}},
        lambda s: {"bucket": "nothing", "versioningConfiguration": {"status": "Enabled"}},
        "NoSuchBucket",
    ),
    (
        "aws:lb/loadBalancer:LoadBalancer",
        lambda s: {"subnets": s.subnets, "securityGroups": [s.group]},
        lambda s: {"subnets": s.other_subnets},
        "no internet gateway",
    ),
    (
        "aws:lb/loadBalancer:LoadBalancer",
        lambda s: {"subnets": s.subnets, "internal": True},
        lambda s: {"subnets": [s.subnets[0], s.subnets[0]], "internal": True},
        "one subnet per zone",
    ),
    (
        "aws:lb/loadBalancer:LoadBalancer",
        lambda s: {"subnets": s.subnets, "accessLogs": {"bucket": s.bucket}},
        lambda s: {"subnets": s.subnets, "accessLogs": {"bucket": "nothing"}},
        "access denied for bucket",
    ),
    (
        "aws:acm/certificateValidation:CertificateValidation",
        lambda s: {"certificateArn": with_record(s)},
        lambda s: {"certificateArn": s.certificate},
        "PENDING_VALIDATION",
    ),
    (
        "aws:route53/record:Record",
        lambda s: {"zoneId": s.zone, "name": "a", "type": "CNAME", "ttl": 1, "records": ["b"]},
        lambda s: {
            "zoneId": s.zone,
            "name": "example.com",
            "type": "CNAME",
            "ttl": 1,
            "records": ["b"],
        },
        "apex",
    ),
    (
        "aws:route53/record:Record",
        lambda s: {"zoneId": s.zone, "name": "a", "type": "A", "ttl": 1, "records": ["10.0.0.1"]},
        lambda s: {
            "zoneId": s.zone,
            "name": "a",
            "type": "A",
            "aliases": [
                {
                    "name": "gone.elb.amazonaws.com",
                    "zoneId": "Z35SXDOTRQ7X7K",
                    "evaluateTargetHealth": True,
                }
            ],
        },
        "alias target name was not found",
    ),
    (
        "aws:bedrock/inferenceProfile:InferenceProfile",
        lambda s: {
            "name": "a",
            "modelSource": {
                "copyFrom": "arn:aws:bedrock:us-east-1::foundation-model/amazon.nova-lite-v1:0"
            },
        },
        lambda s: {
            "name": "a",
            "modelSource": {
                "copyFrom": (
                    "arn:aws:bedrock:us-east-1::foundation-model/mistral.mistral-large-2407-v1:0"
                )
            },
        },
        "is invalid in us-east-1",
    ),
    (
        "aws:bedrockmodel/invocationLoggingConfiguration:InvocationLoggingConfiguration",
        lambda s: {"loggingConfig": {"s3Config": {"bucketName": s.bucket}}},
        lambda s: {
            "loggingConfig": {
                "cloudwatchConfig": {"logGroupName": s.log_group, "roleArn": s.bedrock_role}
            }
        },
        "logs:PutLogEvents",
    ),
    (
        "aws:cloudwatch/logGroup:LogGroup",
        lambda s: {"kmsKeyId": s.key},
        lambda s: {"kmsKeyId": MISSING_KEY},
        "KMS key",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}-{case[3]}")
def test_refused(standing: Standing, case: Case) -> None:
    refused_then_made(standing, case)
