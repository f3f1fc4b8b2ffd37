"""Sources that several rules name."""

from terrace_policies.model import Reference

GATEWAY_GUIDANCE = Reference(
    "field report",
    "aws-solutions-library-samples/guidance-for-multi-provider-generative-ai-gateway-on-aws",
)
