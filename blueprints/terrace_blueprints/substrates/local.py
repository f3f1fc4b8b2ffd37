"""The embedded one-node cluster. Its facts are published in a file by ``terrace_local``."""

from pathlib import Path

from pydantic import ValidationError

from terrace_blueprints.substrates.contract import (
    ClusterAccess,
    Exposure,
    Identity,
    Images,
    ObjectStore,
    PostgresAccess,
    ProviderCredential,
    Scale,
    Sizes,
    Substrate,
    SubstrateError,
)
from terrace_common.names import (
    GATEWAY,
    GATEWAY_ADMIN,
    MODEL_SIMULATOR,
    POSTGRES,
    PROMETHEUS,
    ServiceName,
)
from terrace_common.substrate import LocalSubstrateFile

API_SERVER_PORT = 6443

# What fits two cores and 4 GiB.
SIZES = Sizes(
    guard={"cpu": "50m", "memory": "96Mi", "memory_limit": "384Mi"},
    translator={"cpu": "150m", "memory": "450Mi", "memory_limit": "900Mi"},
    postgres={"cpu": "50m", "memory": "128Mi", "memory_limit": "512Mi"},
    prometheus={"cpu": "30m", "memory": "96Mi", "memory_limit": "384Mi"},
    model_simulator={"cpu": "30m", "memory": "64Mi", "memory_limit": "256Mi"},
    postgres_storage="4Gi",
    bill_storage="1Gi",
    spool_storage="1Gi",
)
# The simulator demands credentials as a provider would.
PROVIDER_CREDENTIALS = (
    ProviderCredential("TERRACE_SIMULATOR_API_KEY", "simulator-api-key"),
    ProviderCredential("AWS_ACCESS_KEY_ID", "aws-access-key-id"),
    ProviderCredential("AWS_SECRET_ACCESS_KEY", "aws-secret-access-key"),
)
PUBLISHED: tuple[ServiceName, ...] = (GATEWAY, GATEWAY_ADMIN, MODEL_SIMULATOR, PROMETHEUS)


def read_local_substrate(path: Path) -> Substrate:
    """The substrate that the running local cluster published at ``path``.

    Raises ``SubstrateError`` when there is no cluster, or its file is not of this release.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise SubstrateError(
            f"terrace:substrateFile: cannot read {path} ({error.strerror}): the local cluster is "
            "not running, or not for this user; start it with `make up`"
        ) from None
    try:
        file = LocalSubstrateFile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise SubstrateError(
            f"{path}: {where}: {first['msg']}; start the cluster again with `make up`"
        ) from None
    missing = file.missing_images()
    if missing:
        raise SubstrateError(
            f"{path}: images are not built yet: {', '.join(missing)}; run `make up`"
        )
    return local_substrate(file)


def local_substrate(file: LocalSubstrateFile) -> Substrate:
    """The contract, out of what the local cluster published."""
    objects = ObjectStore(root=file.volumes_root, node=file.node_name)
    return Substrate(
        name="local",
        cluster=ClusterAccess(
            kubeconfig=file.kubeconfig,
            identifier=file.cluster_identifier,
            belongs_to_stack=True,
            api={"cidr": f"{file.node_address}/32", "port": API_SERVER_PORT},
        ),
        postgres=PostgresAccess(storage=objects.volume(POSTGRES.name, SIZES.postgres_storage)),
        objects=objects,
        identity=Identity(credentials=PROVIDER_CREDENTIALS),
        images=Images(dict(file.images)),
        exposure=Exposure(
            address=file.node_address,
            node_ports={s.name: s.node_port for s in PUBLISHED if s.node_port is not None},
        ),
        scheduling={"core": {}},
        sizes=SIZES,
        gateway=Scale(min_replicas=2, max_replicas=2),
        scrape_interval_seconds=5,  # three targets: what one sees should be what one just did
        isolation=file.isolation,
        simulates_providers=True,
    )
