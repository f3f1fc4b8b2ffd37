"""QuotaSync as the blueprint makes it, except that AWS is an address of the test's own."""

import pulumi
import pulumi_kubernetes as k8s

from terrace_common.names import NAMESPACE_GATEWAY
from terrace_components import QuotaSync

SECRET = "quota-sync-trial"
config = pulumi.Config()
aws = config.require_object("aws")


def to_the_fake(args: pulumi.ResourceTransformArgs) -> pulumi.ResourceTransformResult | None:
    """botocore's own variables: the component has no argument for another AWS."""
    if args.type_ != "kubernetes:apps/v1:Deployment":
        return None
    spec = args.props["spec"]["template"]["spec"]
    url = f"http://{aws['address']}:{aws['port']}"
    for service in ("BEDROCK", "SERVICE_QUOTAS"):
        spec["containers"][0]["env"].append({"name": f"AWS_ENDPOINT_URL_{service}", "value": url})
    return pulumi.ResourceTransformResult(props=args.props, opts=args.opts)


keys = k8s.core.v1.Secret(
    "keys",
    metadata={"name": SECRET, "namespace": NAMESPACE_GATEWAY},
    string_data={"id": aws["key_id"], "secret": aws["secret_key"]},
)
QuotaSync(
    "quota-sync",
    {
        "namespace": NAMESPACE_GATEWAY,
        "image": config.require("image"),
        "resources": {"cpu": "10m", "memory": "96Mi", "memory_limit": "256Mi"},
        "provider_secret": SECRET,
        "provider_credentials": {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"},
        "every_seconds": 60,
        "extra_egress": [{"cidr": f"{aws['address']}/32", "port": aws["port"]}],
    },
    opts=pulumi.ResourceOptions(depends_on=[keys], transforms=[to_the_fake]),
)
