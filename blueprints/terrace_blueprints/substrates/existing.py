"""Somebody's cluster, by a context of a kubeconfig: the same platform on what they have."""

from pathlib import Path
from typing import Any

import yaml

from terrace_blueprints.settings import Settings
from terrace_blueprints.settings_existing import ExistingSettings, GivenDatabase
from terrace_blueprints.substrates import aws, local
from terrace_blueprints.substrates.contract import (
    Admission,
    ClusterAccess,
    Exposure,
    GivenPostgres,
    Identity,
    Images,
    ObjectStore,
    PostgresAccess,
    Scale,
    Substrate,
    SubstrateError,
)
from terrace_common.names import POSTGRES

SIZES = {"evaluation": local.SIZES, "production": aws.SIZES}


def existing_substrate(settings: Settings, *, database_ca: str | None) -> Substrate:
    """The contract, out of the stack's settings.

    Raises ``SubstrateError`` when the kubeconfig is not there or has no such context.
    """
    given = settings.existing
    if given is None:
        raise SubstrateError("terrace:existing: is required")
    kubeconfig = Path(given.kubeconfig).expanduser()
    _has_context(kubeconfig, given.context)
    sizes = SIZES[given.sizes]
    credentials = aws.provider_credentials(settings)
    if given.simulate_providers:
        credentials = (*local.PROVIDER_CREDENTIALS, *credentials)
    return Substrate(
        name="existing",
        cluster=ClusterAccess(
            kubeconfig=str(kubeconfig),
            context=given.context,
            identifier=f"existing-{given.context}",
            api={"cidr": given.kubernetes_api.cidr, "port": given.kubernetes_api.port},
            belongs_to_stack=False,
        ),
        postgres=_postgres(given, database_ca, sizes.postgres_storage),
        objects=_objects(given),
        identity=Identity(credentials=credentials),
        images=Images(dict(settings.images)),
        exposure=_exposure(given),
        scheduling={"core": {}},
        sizes=sizes,
        gateway=Scale(
            min_replicas=settings.gateway.min_replicas,
            max_replicas=settings.gateway.max_replicas or settings.gateway.min_replicas,
        ),
        scrape_interval_seconds=5 if given.sizes == "evaluation" else 15,
        isolation=given.isolation,
        simulates_providers=given.simulate_providers,
        admission=_admission(settings, given),
        next_steps=aws.next_steps(f"kubectl config use-context {given.context}"),
    )


def _admission(settings: Settings, given: ExistingSettings) -> Admission | None:
    """None for an evaluation, whose LiteLLM has less memory than the rules ask for."""
    if given.sizes == "evaluation":
        return None
    return Admission(
        immutable_images=aws.immutable_images(settings),
        node_ports=tuple(sorted(_exposure(given).node_ports.values())),
    )


def _has_context(kubeconfig: Path, context: str) -> None:
    where = f"terrace:existing.kubeconfig: {kubeconfig}"
    try:
        document: Any = yaml.safe_load(kubeconfig.read_text())
        contexts = [str(entry["name"]) for entry in document["contexts"]]
    except OSError as error:
        raise SubstrateError(f"{where} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, KeyError, TypeError):
        raise SubstrateError(f"{where} is not a kubeconfig") from None
    if context not in contexts:
        raise SubstrateError(
            f"terrace:existing.context: {kubeconfig} has no context {context!r}; it has: "
            f"{', '.join(contexts) or 'none'}"
        )


def _objects(given: ExistingSettings) -> ObjectStore:
    storage = given.storage
    if storage is None:
        return ObjectStore()
    return ObjectStore(root=storage.path, node=storage.node, storage_class=storage.storage_class)


def _postgres(given: ExistingSettings, ca: str | None, size: str) -> PostgresAccess:
    database: GivenDatabase | None = given.database
    if database is None:
        return PostgresAccess(storage=_objects(given).volume(POSTGRES.name, size))
    return PostgresAccess(
        given=GivenPostgres(
            host=database.host,
            address={"cidr": str(database.address_range), "port": database.port},
            ca=ca,
            admin_secret=database.admin_secret,
        )
    )


def _exposure(given: ExistingSettings) -> Exposure:
    exposure = given.exposure
    if exposure is None:
        return Exposure()
    return Exposure(address=exposure.address, node_ports={**exposure.node_ports})
