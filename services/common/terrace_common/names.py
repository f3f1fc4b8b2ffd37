"""Names that packages agree on to the letter: namespaces, labels, Services, ports, Secrets."""

from dataclasses import dataclass

PART_OF = "terrace"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_PART_OF = "app.kubernetes.io/part-of"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_TENANT = "terrace.dev/tenant"
LABEL_LAYER = "terrace.dev/layer"

ANNOTATION_SCRAPE = "prometheus.io/scrape"
ANNOTATION_PORT = "prometheus.io/port"
ANNOTATION_PATH = "prometheus.io/path"

NAMESPACE_FOUNDATION = "terrace-foundation"
NAMESPACE_GATEWAY = "terrace-gateway"
NAMESPACE_PROVIDERS = "terrace-providers"
NAMESPACE_OBSERVABILITY = "terrace-observability"

RUN_AS_USER = 10001  # guard and translator share it: the engine directory is 0700

REQUEST_ID_HEADER = "x-terrace-request-id"
ATTEMPT_ID_HEADER = "x-terrace-attempt-id"
ATTEMPT_ID_METADATA = "terrace-attempt-id"  # key in Bedrock's requestMetadata
# Of attempts whose id Bedrock is told on every surface. Those of before (``att_`` and a hexadecimal
# digit), which it was told on converse only, and those of guardrails have another.
NAMED_ATTEMPT_PREFIX = "att_n"
ANCHOR_PREFIX = "anchors/"  # of heads of the ledger in their bucket
CAPTURE_CONTEXT = {"terrace": "capture"}  # KMS's encryption context of captures' data keys


@dataclass(frozen=True)
class ServiceName:
    """A Kubernetes Service: its name, namespace, port and (local) NodePort."""

    name: str
    namespace: str
    port: int
    node_port: int | None = None

    @property
    def host(self) -> str:
        """Name inside the cluster, ``service.namespace``."""
        return f"{self.name}.{self.namespace}"

    @property
    def url(self) -> str:
        """Plain HTTP address inside the cluster, without a trailing slash."""
        return f"http://{self.host}:{self.port}"


POSTGRES = ServiceName("postgres", NAMESPACE_FOUNDATION, 5432)
GATEWAY = ServiceName("gateway", NAMESPACE_GATEWAY, 8080, 30400)
GATEWAY_ADMIN = ServiceName("gateway-admin", NAMESPACE_GATEWAY, 8081, 30401)
MODEL_SIMULATOR = ServiceName("model-simulator", NAMESPACE_PROVIDERS, 8080, 30480)
PROMETHEUS = ServiceName("prometheus", NAMESPACE_OBSERVABILITY, 9090, 30490)
GATEWAY_METRICS_PORT = 9090
QUOTA_SYNC = "quota-sync"
QUOTA_SYNC_METRICS_PORT = 9090

SECRET_POSTGRES = "postgres-credentials"  # noqa: S105  name of a Secret, not one
SECRET_GATEWAY = "gateway-secrets"  # noqa: S105
SECRET_GATEWAY_LEDGER = "gateway-ledger-keys"  # noqa: S105
SECRET_PROVIDERS = "provider-credentials"  # noqa: S105
SECRET_SIMULATOR = "simulator-credentials"  # noqa: S105

IMAGES = ("gateway", "translator", "model-simulator", "postgres", "prometheus", "secret-bootstrap")


def labels(name: str, *, component: str, layer: str) -> dict[str, str]:
    """Labels of every object of a component. Nothing here changes at promotion to another stage."""
    return {
        LABEL_NAME: name,
        LABEL_PART_OF: PART_OF,
        LABEL_COMPONENT: component,
        LABEL_LAYER: layer,
    }
