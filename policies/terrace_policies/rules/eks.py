"""EKS control plane."""

from collections.abc import Iterator

from terrace_policies.model import Finding, Parameters, Reference, Rule, Says, Severity
from terrace_policies.networks import open_networks
from terrace_policies.resources import Resource

CLUSTER = "aws:eks/cluster:Cluster"
NEEDED_LOGS = ("api", "audit", "authenticator")


def _endpoint(cluster: Resource, given: Parameters) -> Iterator[Says]:
    del given
    if not cluster.get("vpcConfig.endpointPublicAccess", True):
        return
    cidrs = cluster.get("vpcConfig.publicAccessCidrs") or ["0.0.0.0/0"]
    if open_to := open_networks(cidrs):
        yield Finding(
            "vpcConfig.publicAccessCidrs",
            f"the API endpoint answers {', '.join(open_to)}; name the networks of your people"
            " and runners",
        )


def _authentication(cluster: Resource, given: Parameters) -> Iterator[Says]:
    del given
    mode = cluster.get("accessConfig.authenticationMode", "CONFIG_MAP")
    if mode != "API":
        yield Finding("accessConfig.authenticationMode", f"is {mode}; must be API")


def _secrets(cluster: Resource, given: Parameters) -> Iterator[Says]:
    del given
    kinds = cluster.get("encryptionConfig.resources") or []
    if "secrets" not in kinds or not cluster.has("encryptionConfig.provider.keyArn"):
        yield Finding("encryptionConfig", "Secrets are not encrypted with a KMS key of yours")


def _logs(cluster: Resource, given: Parameters) -> Iterator[Says]:
    del given
    missing = set(NEEDED_LOGS) - set(cluster.get("enabledClusterLogTypes") or [])
    if missing:
        yield Finding("enabledClusterLogTypes", f"lacks {', '.join(sorted(missing))}")


RULES = (
    Rule(
        id="eks-endpoint-not-open",
        description="The EKS API endpoint is private or open to named networks only",
        why="Everyone on the internet may try a leaked token or the next flaw of the API server.",
        remediation="Set `cluster.api_access_cidrs` to your networks, or `cluster.private_api`.",
        severity=Severity.CRITICAL,
        references=(
            Reference("CIS EKS Benchmark 1.5", "5.4.1, 5.4.2"),
            Reference("NSA/CISA Kubernetes Hardening Guide", "control plane hardening"),
        ),
        types=(CLUSTER,),
        resource=_endpoint,
    ),
    Rule(
        id="eks-authentication-by-api",
        description="EKS access is granted by access entries, not by the aws-auth ConfigMap",
        why="The mode goes one way only, and a wrong aws-auth locks everybody out.",
        remediation="Set accessConfig.authenticationMode to API and use access entries.",
        severity=Severity.HIGH,
        references=(
            Reference("EKS Best Practices", "security: cluster access management"),
            Reference("field report", "pulumi/pulumi-eks#1493"),
        ),
        types=(CLUSTER,),
        resource=_authentication,
    ),
    Rule(
        id="eks-secrets-encrypted",
        description="Kubernetes Secrets are encrypted with a KMS key of the account",
        why="Without it a copy of the cluster's store is a copy of every credential.",
        remediation="Set `cluster.secrets_key_arn` (encryptionConfig with resources [secrets]).",
        severity=Severity.HIGH,
        references=(Reference("CIS EKS Benchmark 1.5", "5.3.1"),),
        types=(CLUSTER,),
        resource=_secrets,
    ),
    Rule(
        id="eks-control-plane-logs",
        description="The control plane writes api, audit and authenticator logs",
        why="Without audit and authenticator logs nobody can say who did what, and as whom.",
        remediation="Add the missing types to `cluster.log_types` (enabledClusterLogTypes).",
        severity=Severity.MEDIUM,
        references=(Reference("CIS EKS Benchmark 1.5", "2.1.1"),),
        types=(CLUSTER,),
        resource=_logs,
    ),
)
