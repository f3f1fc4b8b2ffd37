"""A namespace in which nothing may talk until a policy says so."""

from typing import Literal, NotRequired, TypedDict

import pulumi
import pulumi_kubernetes as k8s

from terrace_common.names import LABEL_LAYER, LABEL_PART_OF, PART_OF
from terrace_components.arguments import Arguments, Name
from terrace_components.objects import name_of, namespace_of

READINESS_GATES = "elbv2.k8s.aws/pod-readiness-gate-inject"


class SecureNamespaceArgs(TypedDict):
    """Arguments of ``SecureNamespace``."""

    name: str
    """Name of the namespace."""
    layer: str
    """Layer that lives here, for the label ``terrace.dev/layer``."""
    pod_security: NotRequired[str]
    """Pod Security level that the API server enforces: ``restricted`` (default) or ``baseline``
    (for pods with an init container that changes the owner of a volume)."""
    readiness_gates: NotRequired[bool]
    """True: pods behind a ``TargetGroupBinding`` are ready only once the load balancer's health
    check passes, so a roll waits for it (the AWS Load Balancer Controller adds the gate to pods
    that are created while their Service and binding are there); default false."""


class NamespaceArguments(Arguments):
    """Checked ``SecureNamespaceArgs``."""

    name: Name
    layer: Name
    pod_security: Literal["restricted", "baseline"] = "restricted"
    readiness_gates: bool = False


class SecureNamespace(pulumi.ComponentResource):
    """A namespace that denies all traffic, in and out, and enforces a Pod Security level.

    Creates: Namespace, NetworkPolicy ``default-deny``.
    """

    namespace: pulumi.Output[str]
    """Name of the namespace; known once its default-deny policy is there."""

    def __init__(
        self,
        name: str,
        args: SecureNamespaceArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:SecureNamespace", name, None, opts)
        given = NamespaceArguments.of(args)
        child = pulumi.ResourceOptions(parent=self)
        namespace = k8s.core.v1.Namespace(
            name,
            metadata={
                "name": given.name,
                "labels": {
                    LABEL_PART_OF: PART_OF,
                    LABEL_LAYER: given.layer,
                    "pod-security.kubernetes.io/enforce": given.pod_security,
                    "pod-security.kubernetes.io/enforce-version": "latest",
                    # So that a workload whose pods would be refused says so when it is applied.
                    "pod-security.kubernetes.io/warn": given.pod_security,
                    **({READINESS_GATES: "enabled"} if given.readiness_gates else {}),
                },
            },
            opts=child,
        )
        created = name_of(namespace)
        deny = k8s.networking.v1.NetworkPolicy(
            f"{name}-default-deny",
            metadata={"name": "default-deny", "namespace": created},
            spec={"pod_selector": {}, "policy_types": ["Ingress", "Egress"]},
            opts=child,
        )
        # From the policy, so that whoever uses the name starts after traffic is closed.
        self.namespace = namespace_of(deny)
        self.register_outputs({"namespace": self.namespace})
