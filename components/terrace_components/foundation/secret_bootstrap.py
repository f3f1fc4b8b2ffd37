"""Secrets that are born in the cluster: no value is ever in code, config or Pulumi's state."""

import re
from typing import Any, NotRequired, TypedDict, cast

import pulumi
import pulumi_kubernetes as k8s
from pulumi_kubernetes.networking.v1 import NetworkPolicyEgressRuleArgsDict
from pydantic import Field, field_validator

from terrace_common.names import RUN_AS_USER, labels
from terrace_components import network, pods
from terrace_components.arguments import (
    Address,
    AddressArgs,
    Arguments,
    Image,
    Name,
    Resources,
    Scheduling,
    SchedulingArgs,
    Text,
)
from terrace_components.objects import metadata, name_of

NAME = "secret-bootstrap"
RESOURCES = Resources(cpu="20m", memory="32Mi", memory_limit="128Mi")
DEADLINE_SECONDS = 300
HTTPS = 443
SECRETS_MANAGER = "secrets_manager"
EXISTING = "existing"
SECRET_ARN = re.compile(
    r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[A-Za-z0-9/_+=.@!-]+"
)


class SecretArgs(TypedDict):
    """A Secret to create, if it is not there yet."""

    namespace: str
    """Namespace of the Secret."""
    name: str
    """Name of the Secret."""
    data: dict[str, Any]
    """Key -> how its value is made: ``{"random_hex": bytes}``, ``{"random_token": {"prefix",
    "bytes"}}``, ``{"template": "...{namespace/name/key}..."}``, ``{"copy": "namespace/name/key"}``
    or ``{"secrets_manager": {"arn": "...", "json_key": "..."}}`` (AWS; ``json_key`` may be left
    out; the role of the Job's service account must allow it). ``{"existing": True}``, for all keys
    of an entry: a Secret of your own that is there. Later entries may refer to earlier ones."""


class SecretBootstrapArgs(TypedDict):
    """Arguments of ``SecretBootstrap``."""

    namespace: pulumi.Input[str]
    """Namespace that the Job runs in."""
    image: pulumi.Input[str]
    """Image of ``services/secret_bootstrap``."""
    secrets: list[SecretArgs]
    """What to create, in order. Their namespaces must exist."""
    kubernetes_api: AddressArgs
    """Where the API server listens, as seen behind its Service. With a ``secrets_manager`` source
    the Job also reaches DNS and the EKS Pod Identity agent; else it reaches nothing more."""
    extra_egress: NotRequired[list[AddressArgs]]
    """Further addresses, such as the VPC's range at 443 where it has an endpoint for Secrets
    Manager. With a ``secrets_manager`` source, public addresses at 443 are open as well."""
    scheduling: NotRequired[SchedulingArgs]
    """Nodes to run on; default any."""


class SecretArguments(Arguments):
    """Checked ``SecretArgs``."""

    namespace: Name
    name: Name
    data: dict[str, dict[str, Any]] = Field(min_length=1)

    @field_validator("data")
    @classmethod
    def _arns(cls, data: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        """The other kinds are judged by the Job; an ARN it could not even ask for is told here."""
        for key, source in data.items():
            if SECRETS_MANAGER in source:
                _check_source(key, source[SECRETS_MANAGER])
        return data

    def uses(self, kind: str) -> bool:
        """Whether one of the keys is made in this way."""
        return any(kind in source for source in self.data.values())


def _check_source(key: str, value: object) -> None:
    fields = cast(dict[str, object], value) if isinstance(value, dict) else {}
    arn = fields.get("arn")
    known = isinstance(arn, pulumi.Output) or (isinstance(arn, str) and SECRET_ARN.fullmatch(arn))
    if not known or not set(fields) <= {"arn", "json_key"}:
        raise ValueError(
            f"{key}: secrets_manager must be arn"
            " (arn:<partition>:secretsmanager:<region>:<account>:secret:<name>) and, if need be,"
            " json_key"
        )


class _SecretBootstrap(Arguments):
    namespace: Text
    image: Image
    secrets: list[SecretArguments] = Field(min_length=1)
    kubernetes_api: Address
    extra_egress: list[Address] = Field(default_factory=list)
    scheduling: Scheduling = Scheduling()

    @property
    def reads_aws(self) -> bool:
        """Whether the Job needs an identity at AWS."""
        return any(secret.uses(SECRETS_MANAGER) for secret in self.secrets)

    def egress(self) -> list[NetworkPolicyEgressRuleArgsDict]:
        rules = [network.to_address(self.kubernetes_api)]
        if self.reads_aws:
            rules += [network.to_dns(), *network.to_pod_identity(), network.to_internet(HTTPS)]
        return rules + [network.to_address(address) for address in self.extra_egress]


class SecretBootstrap(pulumi.ComponentResource):
    """A Job that creates Secrets once and never overwrites or prints one.

    Its service account ``secret-bootstrap`` may create Secrets in the named namespaces and read
    the named ones. A value of AWS Secrets Manager goes from there to the Secret, and through no
    state; the role must be associated with the service account before the Job is made.

    Creates: ServiceAccount, Role and RoleBinding per namespace, NetworkPolicy, Job (awaited).
    """

    job: pulumi.Output[str]
    """Name of the Job; known when all Secrets exist."""

    def __init__(
        self,
        name: str,
        args: SecretBootstrapArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:SecretBootstrap", name, None, opts)
        given = _SecretBootstrap.of(args)
        child = pulumi.ResourceOptions(parent=self)
        label = labels(NAME, component="secrets", layer="foundation")
        account = k8s.core.v1.ServiceAccount(
            f"{name}-account",
            metadata=metadata(NAME, given.namespace, label),
            automount_service_account_token=False,
            opts=child,
        )
        before_job: list[pulumi.Resource] = []
        for namespace in sorted({secret.namespace for secret in given.secrets}):
            here = [s for s in given.secrets if s.namespace == namespace]
            role = k8s.rbac.v1.Role(
                f"{name}-{namespace}",
                metadata=metadata(NAME, namespace, label),
                rules=_rules(here),
                opts=child,
            )
            binding = k8s.rbac.v1.RoleBinding(
                f"{name}-{namespace}",
                metadata=metadata(NAME, namespace, label),
                role_ref={
                    "api_group": "rbac.authorization.k8s.io",
                    "kind": "Role",
                    "name": NAME,
                },
                subjects=[{"kind": "ServiceAccount", "name": NAME, "namespace": given.namespace}],
                opts=pulumi.ResourceOptions(parent=self, depends_on=[role, account]),
            )
            before_job.append(binding)
        before_job.append(
            k8s.networking.v1.NetworkPolicy(
                f"{name}-policy",
                metadata=metadata(NAME, given.namespace, label),
                spec=network.policy_spec(NAME, ingress=[], egress=given.egress()),
                opts=child,
            )
        )
        # ARNs may be outputs of other resources.
        spec = pulumi.Output.json_dumps(
            [{"namespace": s.namespace, "name": s.name, "data": s.data} for s in given.secrets]
        )
        job = k8s.batch.v1.Job(
            f"{name}-job",
            metadata=metadata(NAME, given.namespace, label),
            spec={
                "backoff_limit": 6,
                "active_deadline_seconds": DEADLINE_SECONDS,
                "template": {
                    "metadata": {"labels": label},
                    "spec": {
                        **pods.pod_spec(
                            user=RUN_AS_USER,
                            service_account=NAME,
                            token=True,
                            scheduling=given.scheduling,
                            containers=[
                                pods.container(
                                    NAME,
                                    given.image,
                                    resources=RESOURCES,
                                    env=[{"name": "SECRETS_SPEC", "value": spec}],
                                )
                            ],
                            volumes=[],
                        ),
                        "restart_policy": pods.job_restart_policy(pod_identity=given.reads_aws),
                    },
                },
            },
            # A Job cannot be changed, and a new one of this name needs the old one gone.
            opts=pulumi.ResourceOptions(
                parent=self, depends_on=before_job, delete_before_replace=True
            ),
        )
        self.job = name_of(job)
        self.register_outputs({"job": self.job})


def _rules(secrets: list[SecretArguments]) -> "list[k8s.rbac.v1.PolicyRuleArgsDict]":
    read: k8s.rbac.v1.PolicyRuleArgsDict = {
        "api_groups": [""],
        "resources": ["secrets"],
        "verbs": ["get"],
        "resource_names": [secret.name for secret in secrets],
    }
    if all(secret.uses(EXISTING) for secret in secrets):
        return [read]
    # `create` cannot be narrowed to names (the API has none yet to compare).
    return [{"api_groups": [""], "resources": ["secrets"], "verbs": ["create"]}, read]
