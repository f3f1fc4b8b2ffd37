"""The pods of a Service as targets of a load balancer that Pulumi owns."""

from typing import Annotated, TypedDict

import pulumi
import pulumi_kubernetes as k8s

from terrace_common.names import labels
from terrace_components.arguments import Arguments, Name, Port, Text
from terrace_components.aws.arguments import text_like
from terrace_components.objects import metadata

TARGET_GROUP = text_like(
    r"arn:aws[a-z-]*:elasticloadbalancing:[a-z0-9-]+:\d{12}:targetgroup/[A-Za-z0-9-]+/[0-9a-f]+",
    "the ARN of a target group:"
    " arn:<partition>:elasticloadbalancing:<region>:<account>:targetgroup/<name>/<id>",
)
SECURITY_GROUP = text_like(r"sg-[0-9a-f]{8,17}", "a security group's id such as sg-0a1b2c3d")


class TargetGroupBindingArgs(TypedDict):
    """Arguments of ``TargetGroupBinding``."""

    namespace: pulumi.Input[str]
    """Namespace of the Service."""
    service: str
    """Name of the Service, and of the binding."""
    port: int
    """Port of the Service, which must be that of its pods as well, 1 to 65535."""
    target_group_arn: pulumi.Input[str]
    """ARN of the target group, of target type ``ip``."""
    load_balancer_security_group_id: pulumi.Input[str]
    """Security group of the load balancer: the nodes let it in at ``port``, and nobody else."""


class _TargetGroupBinding(Arguments):
    namespace: Text
    service: Name
    port: Port
    target_group_arn: Annotated[str | pulumi.Output[str], TARGET_GROUP]
    load_balancer_security_group_id: Annotated[str | pulumi.Output[str], SECURITY_GROUP]


class TargetGroupBinding(pulumi.ComponentResource):
    """Ready pods are registered by their addresses, ending ones are taken out.

    The controller (``AwsLoadBalancerController``) does the work; make this depend on it, so that
    its kind exists before, and that it is still there to take the finalizer off at the end. Make
    the pods depend on this: only pods that are created after it (in a namespace with
    ``readiness_gates``) wait for the load balancer's health check before they count as ready. The
    Service may come later than the binding, but before the pods.

    Creates: TargetGroupBinding.
    """

    name: pulumi.Output[str]
    """Name of the binding; known when Kubernetes has it."""

    def __init__(
        self,
        name: str,
        args: TargetGroupBindingArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:TargetGroupBinding", name, None, opts)
        given = _TargetGroupBinding.of(args)
        binding = k8s.apiextensions.CustomResource(
            f"{name}-binding",
            api_version="elbv2.k8s.aws/v1beta1",
            kind="TargetGroupBinding",
            metadata=metadata(
                given.service,
                given.namespace,
                labels(given.service, component="load-balancer", layer="gateway"),
            ),
            spec={
                "serviceRef": {"name": given.service, "port": given.port},
                "targetGroupARN": given.target_group_arn,
                "targetType": "ip",
                "networking": {
                    "ingress": [
                        {
                            "from": [
                                {
                                    "securityGroup": {
                                        "groupID": given.load_balancer_security_group_id
                                    }
                                }
                            ],
                            "ports": [{"protocol": "TCP", "port": given.port}],
                        }
                    ]
                },
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.name = binding.id.apply(lambda _: given.service)
        self.register_outputs({"name": self.name})
