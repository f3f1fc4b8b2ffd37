"""What the tables of refusals stand on: a little of everything, made through the provider."""

import json
from typing import Any

from account import Account

VPC = "aws:ec2/vpc:Vpc"
SUBNET = "aws:ec2/subnet:Subnet"
GROUP = "aws:ec2/securityGroup:SecurityGroup"
ROLE = "aws:iam/role:Role"
BUCKET = "aws:s3/bucket:Bucket"


def trust(service: str, *actions: str) -> str:
    """A trust policy of one service."""
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": service},
        "Action": ["sts:AssumeRole", *actions],
    }
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


def document(*actions: str, resource: Any = "*", **more: Any) -> str:
    """An IAM document of one statement."""
    statement = {"Effect": "Allow", "Action": list(actions), "Resource": resource, **more}
    return json.dumps({"Version": "2012-10-17", "Statement": [statement]})


class Standing:
    """Ids and ARNs by short names, as attributes."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.cni: str | None = None
        self.vpc = self._id(VPC, "vpc", {"cidrBlock": "10.0.0.0/16"})
        self.other_vpc = self._id(VPC, "other", {"cidrBlock": "10.1.0.0/16"})
        self.subnets = [self._subnet(self.vpc, "10.0", index) for index in range(3)]
        self.other_subnets = [self._subnet(self.other_vpc, "10.1", index) for index in range(2)]
        self.gateway = self._id(
            "aws:ec2/internetGateway:InternetGateway", "igw", {"vpcId": self.vpc}
        )
        self.group = self._id(GROUP, "group", {"vpcId": self.vpc})
        self.other_group = self._id(GROUP, "other-group", {"vpcId": self.other_vpc})
        self.table = self._id("aws:ec2/routeTable:RouteTable", "table", {"vpcId": self.vpc})
        self.eip = self._id("aws:ec2/eip:Eip", "eip", {"domain": "vpc"})
        self.key = self._arn("aws:kms/key:Key", "key", {"enableKeyRotation": True})
        self.cluster_role = self._arn(ROLE, "eks", {"assumeRolePolicy": trust("eks.amazonaws.com")})
        self.node_role = self._arn(ROLE, "nodes", {"assumeRolePolicy": trust("ec2.amazonaws.com")})
        self.pod_role = self._arn(
            ROLE, "pods", {"assumeRolePolicy": trust("pods.eks.amazonaws.com", "sts:TagSession")}
        )
        self.bedrock_role = self._arn(
            ROLE, "bedrock", {"assumeRolePolicy": trust("bedrock.amazonaws.com")}
        )
        self.cluster = self._id(
            "aws:eks/cluster:Cluster",
            "cluster",
            {
                "roleArn": self.cluster_role,
                "vpcConfig": {"subnetIds": self.subnets},
                "version": "1.34",
                "accessConfig": {"authenticationMode": "API"},
                "bootstrapSelfManagedAddons": False,
            },
        )
        self.bucket = self._id(BUCKET, "bucket", {})
        self.log_group = self._id("aws:cloudwatch/logGroup:LogGroup", "log", {})
        self.zone = self._id("aws:route53/zone:Zone", "zone", {"name": "example.com"})
        self.certificate = self._id(
            "aws:acm/certificate:Certificate",
            "cert",
            {"domainName": "ai.example.com", "validationMethod": "DNS"},
        )

    def with_cni(self) -> "Standing":
        if self.cni is None:
            self.cni = self._id(
                "aws:eks/addon:Addon", "cni", {"clusterName": self.cluster, "addonName": "vpc-cni"}
            )
        return self

    def node_group(self) -> dict[str, Any]:
        """Inputs of a node group that fits."""
        return {
            "clusterName": self.cluster,
            "nodeRoleArn": self.node_role,
            "subnetIds": self.subnets,
            "scalingConfig": {"minSize": 1, "desiredSize": 1, "maxSize": 2},
        }

    def _subnet(self, vpc: str, start: str, index: int) -> str:
        inputs = {
            "vpcId": vpc,
            "cidrBlock": f"{start}.{index}.0/24",
            "availabilityZone": f"us-east-1{'abc'[index]}",
        }
        return self._id(SUBNET, f"subnet-{start}-{index}", inputs)

    def _id(self, type: str, name: str, inputs: dict[str, Any]) -> str:
        return str(self.account.create(type, inputs, name)["id"])

    def _arn(self, type: str, name: str, inputs: dict[str, Any]) -> str:
        return str(self.account.create(type, inputs, name)["arn"])
