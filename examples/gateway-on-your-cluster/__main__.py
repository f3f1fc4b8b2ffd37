"""The governance gateway, its database and its secrets on any cluster of your kubeconfig."""

from pathlib import Path

import pulumi

from terrace_components import (
    FoundationLocal,
    GovernanceGateway,
    PodPeerArgs,
    ResourcesArgs,
    gateway_secrets,
)

config = pulumi.Config()
images = config.require_object("images")
database: PodPeerArgs = {"namespace": "terrace-foundation", "pod": "postgres", "port": 5432}
small: ResourcesArgs = {"cpu": "100m", "memory": "256Mi", "memory_limit": "512Mi"}

foundation = FoundationLocal(
    "foundation",
    {
        "namespace": "terrace-foundation",
        "namespaces": [
            {"name": "terrace-foundation", "layer": "foundation", "pod_security": "baseline"},
            {"name": "terrace-gateway", "layer": "gateway"},
        ],
        "secrets": gateway_secrets("postgres.terrace-foundation:5432"),
        "secret_bootstrap_image": images["secret-bootstrap"],
        "kubernetes_api": config.require_object("kubernetesApi"),
        "postgres_image": images["postgres"],
        "postgres_storage": config.require_object("storage"),
        "postgres_resources": small,
        "postgres_clients": [{"namespace": "terrace-gateway", "pod": "gateway", "port": 5432}],
    },
)
gateway = GovernanceGateway(
    "gateway",
    {
        "namespace": "terrace-gateway",
        "guard_image": images["gateway"],
        "translator_image": images["translator"],
        "governance": Path(__file__).with_name("governance.yaml").read_text(),
        "guard_resources": small,
        "translator_resources": {"cpu": "1", "memory": "4Gi", "memory_limit": "4Gi"},
        "database": database,
        "provider_credentials": {"OPENAI_API_KEY": "openai-api-key"},
    },
    pulumi.ResourceOptions(depends_on=[foundation]),
)

pulumi.export("gateway", gateway.url)
