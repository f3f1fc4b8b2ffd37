"""What EKS and RDS add to the simulated account."""

import base64
from typing import Any

from .cloud import ACCOUNT, PARTITION, REGION, Cloud

AUTHORITY = base64.b64encode(b"-----BEGIN CERTIFICATE-----").decode()
CLUSTER_GROUP = "sg-0c1a57e4000000001"


def answer_clusters(
    cloud: Cloud, *, mode: str = "API", service_cidr: str = "172.20.0.0/16", version: str = "1.35"
) -> Cloud:
    """Every cluster that is asked for is there, as EKS describes it."""

    def describe(args: dict[str, Any]) -> dict[str, Any]:
        name = args["name"]
        return {
            "id": name,
            "name": name,
            "arn": f"arn:{PARTITION}:eks:{REGION}:{ACCOUNT}:cluster/{name}",
            "endpoint": f"https://0123ABCD.gr7.{REGION}.eks.amazonaws.com",
            "version": version,
            "certificateAuthorities": [{"data": AUTHORITY}],
            "accessConfigs": [
                {
                    "authenticationMode": mode,
                    "bootstrapClusterCreatorAdminPermissions": True,
                }
            ],
            "kubernetesNetworkConfigs": [
                {"serviceIpv4Cidr": service_cidr, "ipFamily": "ipv4", "serviceIpv6Cidr": ""}
            ],
            "vpcConfig": {
                "clusterSecurityGroupId": CLUSTER_GROUP,
                "endpointPrivateAccess": True,
                "endpointPublicAccess": True,
                "publicAccessCidrs": [],
                "securityGroupIds": [],
                "subnetIds": [],
                "vpcId": "vpc-0a1b2c3d",
                "controlPlaneEgressMode": "",
            },
        }

    cloud.answers["aws:eks/getCluster:getCluster"] = describe
    cloud.outputs["aws:eks/nodeGroup:NodeGroup"] = lambda physical, _: {"nodeGroupName": physical}
    cloud.outputs["aws:ec2/launchTemplate:LaunchTemplate"] = lambda _, __: {"latestVersion": 1}
    return cloud


def answer_databases(cloud: Cloud) -> Cloud:
    """Aurora clusters get an endpoint and a secret."""
    cloud.outputs["aws:rds/cluster:Cluster"] = lambda _, inputs: {
        "endpoint": f"{inputs['clusterIdentifier']}.cluster-abc.{REGION}.rds.amazonaws.com",
        "masterUserSecrets": [
            {
                "secretArn": f"arn:{PARTITION}:secretsmanager:{REGION}:{ACCOUNT}:secret:rds!x-a1",
                "secretStatus": "active",
                "kmsKeyId": inputs["masterUserSecretKmsKeyId"],
            }
        ],
    }
    return cloud
