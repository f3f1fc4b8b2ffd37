"""Terrace's Pulumi components. Each can be taken alone, on any Kubernetes."""

from terrace_components.admission_policies import AdmissionPolicies, AdmissionPoliciesArgs
from terrace_components.arguments import (
    AddressArgs,
    PodPeerArgs,
    ResourcesArgs,
    SchedulingArgs,
    StorageArgs,
)
from terrace_components.aws.bedrock_access import BedrockAccess, BedrockAccessArgs
from terrace_components.aws.bedrock_invocation_logs import (
    BedrockInvocationLogs,
    BedrockInvocationLogsArgs,
)
from terrace_components.aws.bucket import AwsBucket, AwsBucketArgs
from terrace_components.aws.certificate import AwsCertificate, AwsCertificateArgs
from terrace_components.aws.cluster import AwsCluster, AwsClusterArgs
from terrace_components.aws.cluster_add_ons import AwsClusterAddOns, AwsClusterAddOnsArgs
from terrace_components.aws.database import AwsDatabase, AwsDatabaseArgs
from terrace_components.aws.foundation_aws import (
    FoundationAws,
    FoundationAwsArgs,
    FoundationAwsArguments,
)
from terrace_components.aws.keys import AwsKeys, AwsKeysArgs
from terrace_components.aws.load_balancer import AwsLoadBalancer, AwsLoadBalancerArgs
from terrace_components.aws.load_balancer_controller import (
    AwsLoadBalancerController,
    AwsLoadBalancerControllerArgs,
)
from terrace_components.aws.network import AwsNetwork, AwsNetworkArgs
from terrace_components.aws.node_group import AwsNodeGroup, AwsNodeGroupArgs
from terrace_components.aws.pod_identity import AwsPodIdentity, AwsPodIdentityArgs
from terrace_components.aws.quota_sync import QuotaSync, QuotaSyncArgs
from terrace_components.aws.registry import AwsRegistry, AwsRegistryArgs
from terrace_components.aws.secret_reading import secret_reading_policy
from terrace_components.aws.target_group_binding import (
    TargetGroupBinding,
    TargetGroupBindingArgs,
)
from terrace_components.foundation.database_role import DatabaseRole, DatabaseRoleArgs
from terrace_components.foundation.foundation_local import FoundationLocal, FoundationLocalArgs
from terrace_components.foundation.persistent_volume import (
    PersistentVolume,
    PersistentVolumeArgs,
)
from terrace_components.foundation.postgres import Postgres, PostgresArgs
from terrace_components.foundation.secret_bootstrap import SecretBootstrap, SecretBootstrapArgs
from terrace_components.gateway.autoscaling import AutoscalingArgs
from terrace_components.gateway.governance_gateway import (
    GovernanceGateway,
    GovernanceGatewayArgs,
)
from terrace_components.gateway.secrets import aws_gateway_secrets, gateway_secrets
from terrace_components.namespace import SecureNamespace, SecureNamespaceArgs
from terrace_components.observability.observability import Observability, ObservabilityArgs
from terrace_components.providers.model_simulator import ModelSimulator, ModelSimulatorArgs

PACKAGE = "terrace"
VERSION = "0.1.0"
COMPONENTS = (
    AdmissionPolicies,
    AwsBucket,
    AwsCertificate,
    AwsCluster,
    AwsClusterAddOns,
    AwsDatabase,
    AwsKeys,
    AwsLoadBalancer,
    AwsLoadBalancerController,
    AwsNetwork,
    AwsNodeGroup,
    AwsPodIdentity,
    AwsRegistry,
    BedrockAccess,
    BedrockInvocationLogs,
    DatabaseRole,
    FoundationAws,
    FoundationLocal,
    GovernanceGateway,
    ModelSimulator,
    Observability,
    PersistentVolume,
    Postgres,
    QuotaSync,
    SecretBootstrap,
    SecureNamespace,
    TargetGroupBinding,
)

__all__ = [
    "COMPONENTS",
    "PACKAGE",
    "VERSION",
    "AddressArgs",
    "AdmissionPolicies",
    "AdmissionPoliciesArgs",
    "AutoscalingArgs",
    "AwsBucket",
    "AwsBucketArgs",
    "AwsCertificate",
    "AwsCertificateArgs",
    "AwsCluster",
    "AwsClusterAddOns",
    "AwsClusterAddOnsArgs",
    "AwsClusterArgs",
    "AwsDatabase",
    "AwsDatabaseArgs",
    "AwsKeys",
    "AwsKeysArgs",
    "AwsLoadBalancer",
    "AwsLoadBalancerArgs",
    "AwsLoadBalancerController",
    "AwsLoadBalancerControllerArgs",
    "AwsNetwork",
    "AwsNetworkArgs",
    "AwsNodeGroup",
    "AwsNodeGroupArgs",
    "AwsPodIdentity",
    "AwsPodIdentityArgs",
    "AwsRegistry",
    "AwsRegistryArgs",
    "BedrockAccess",
    "BedrockAccessArgs",
    "BedrockInvocationLogs",
    "BedrockInvocationLogsArgs",
    "DatabaseRole",
    "DatabaseRoleArgs",
    "FoundationAws",
    "FoundationAwsArgs",
    "FoundationAwsArguments",
    "FoundationLocal",
    "FoundationLocalArgs",
    "GovernanceGateway",
    "GovernanceGatewayArgs",
    "ModelSimulator",
    "ModelSimulatorArgs",
    "Observability",
    "ObservabilityArgs",
    "PersistentVolume",
    "PersistentVolumeArgs",
    "PodPeerArgs",
    "Postgres",
    "PostgresArgs",
    "QuotaSync",
    "QuotaSyncArgs",
    "ResourcesArgs",
    "SchedulingArgs",
    "SecretBootstrap",
    "SecretBootstrapArgs",
    "SecureNamespace",
    "SecureNamespaceArgs",
    "StorageArgs",
    "TargetGroupBinding",
    "TargetGroupBindingArgs",
    "aws_gateway_secrets",
    "gateway_secrets",
    "secret_reading_policy",
]
