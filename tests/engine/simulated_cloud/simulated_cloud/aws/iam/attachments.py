"""Attachments of managed policies, and which of AWS' own policies exist here."""

from typing import Final

from ...inventory import Item
from ...models import CloudError, Link
from ...schema_check import nearest
from ...values import Properties
from ...world import World
from ..model import ArnOf, AwsModel
from .policies import POLICY
from .roles import ROLE

AWS_POLICIES: Final = frozenset(
    {
        "AdministratorAccess",
        "PowerUserAccess",
        "ReadOnlyAccess",
        "ViewOnlyAccess",
        "SecurityAudit",
        "IAMFullAccess",
        "AmazonEKSClusterPolicy",
        "AmazonEKSServicePolicy",
        "AmazonEKSVPCResourceController",
        "AmazonEKSWorkerNodePolicy",
        "AmazonEKSWorkerNodeMinimalPolicy",
        "AmazonEKS_CNI_Policy",
        "AmazonEKSFargatePodExecutionRolePolicy",
        "AmazonEKSComputePolicy",
        "AmazonEKSBlockStoragePolicy",
        "AmazonEKSLoadBalancingPolicy",
        "AmazonEKSNetworkingPolicy",
        "AmazonEC2ContainerRegistryReadOnly",
        "AmazonEC2ContainerRegistryPullOnly",
        "AmazonEC2ContainerRegistryPowerUser",
        "AmazonEC2FullAccess",
        "AmazonEC2ReadOnlyAccess",
        "AmazonS3FullAccess",
        "AmazonS3ReadOnlyAccess",
        "AmazonSSMManagedInstanceCore",
        "AmazonBedrockFullAccess",
        "AmazonBedrockReadOnly",
        "AmazonBedrockLimitedAccess",
        "CloudWatchAgentServerPolicy",
        "CloudWatchLogsFullAccess",
        "AWSXRayDaemonWriteAccess",
        "SecretsManagerReadWrite",
        "AmazonPrometheusRemoteWriteAccess",
        "AmazonVPCReadOnlyAccess",
        "AmazonRDSFullAccess",
        "AmazonSQSFullAccess",
        "service-role/AmazonEBSCSIDriverPolicy",
        "service-role/AmazonEFSCSIDriverPolicy",
        "service-role/AmazonS3CSIDriverPolicy",
        "service-role/AmazonRDSEnhancedMonitoringRole",
        "service-role/AWSLambdaBasicExecutionRole",
        "service-role/AWSLambdaVPCAccessExecutionRole",
        "service-role/AmazonEC2RoleforSSM",
        "service-role/AWSBackupServiceRolePolicyForBackup",
    }
)
"""AWS' own policies that exist here, by path and name."""


class RolePolicyAttachment(AwsModel):
    token = "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
    level = "account"
    links = (Link("role", ROLE, by=("id", "name"), not_found="NoSuchEntity"),)
    arns = (ArnOf("policyArn", "iam", "policy/.+"),)
    replace_on = frozenset({"role", "policyArn"})
    duplicate_code = "EntityAlreadyExists"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['role']}/{inputs['policyArn']}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_missing_policy(inputs["policyArn"], world)


def refuse_missing_policy(arn: str, world: World) -> None:
    """Raises unless the managed policy exists, in the account or as one of AWS' own."""
    if ":aws:policy/" in arn:
        name = arn.split(":policy/", 1)[1]
        if name not in AWS_POLICIES:
            raise CloudError(
                "NoSuchEntity",
                f"policy {arn} does not exist here; {nearest(name, list(AWS_POLICIES))}",
            )
    elif world.get(arn, POLICY) is None:
        raise CloudError("NoSuchEntity", f"policy {arn} does not exist or is not attachable")


MODELS = (RolePolicyAttachment,)
