"""Settings of the substrate ``existing``: somebody's cluster, and what it offers."""

import ipaddress
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from terrace_blueprints.setting_problems import DIRECTORY, HOST, SECRET_NAME
from terrace_blueprints.settings_platform import Section
from terrace_common.names import GATEWAY, GATEWAY_ADMIN, MODEL_SIMULATOR, PROMETHEUS

PUBLISHED = (GATEWAY, GATEWAY_ADMIN, MODEL_SIMULATOR, PROMETHEUS)


def _range(text: str) -> str:
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"must be an address range such as 10.0.0.1/32: {error}") from None
    return str(network)


AddressRange = Annotated[str, AfterValidator(_range)]
Port = Annotated[int, Field(ge=1, le=65535)]
NodePort = Annotated[int, Field(ge=30000, le=32767)]
Published = Literal["gateway", "gateway-admin", "model-simulator", "prometheus"]


class KubernetesApi(Section):
    """Where the API server listens, as a pod's packets reach it (`kubectl get endpointslices`)."""

    cidr: AddressRange
    port: Port = 443


class Storage(Section):
    """Where volumes live: a storage class, or directories of one node."""

    storage_class: str | None = Field(default=None, alias="class", min_length=1)
    """Storage class that makes volumes."""
    node: str | None = Field(default=None, min_length=1)
    """Name of the node that has ``path``."""
    path: str | None = Field(default=None, pattern=DIRECTORY)
    """Directory on that node; each volume is one below it, kept when the stack goes."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        on_node = self.node is not None and self.path is not None
        half = (self.node is None) != (self.path is None)
        if half or on_node == (self.storage_class is not None):
            raise ValueError("must be {class} or {node, path}")
        return self


class Exposure(Section):
    """How people reach Services from outside: ports of every node."""

    address: str = Field(min_length=1)
    """A node, or what stands before the nodes; for the addresses in the outputs."""
    node_ports: dict[Published, NodePort] = Field(min_length=1)
    """Service -> port on every node. Services that are absent are reachable in the cluster only."""


class GivenDatabase(Section):
    """A PostgreSQL server of yours. A Job makes the role and the database in it."""

    host: str = Field(pattern=HOST)
    port: Port = 5432
    cidr: AddressRange | None = None
    """Addresses of ``host``, for the network policy; default: ``host`` itself, if it is one."""
    admin_secret: str = Field(pattern=SECRET_NAME)
    """``namespace/name`` of a Secret with ``username`` and ``password`` of an administrator."""

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.cidr is None and self.address_range is None:
            raise ValueError(
                f"cidr is required, because host {self.host!r} is a name: a network policy opens "
                "addresses only"
            )
        return self

    @property
    def address_range(self) -> str | None:
        """``cidr``, or the address that ``host`` is."""
        if self.cidr is not None:
            return self.cidr
        try:
            return str(ipaddress.ip_network(self.host))
        except ValueError:
            return None


class ExistingSettings(Section):
    """A cluster that somebody else made and runs."""

    kubeconfig: str = Field(default="~/.kube/config", min_length=1)
    """Path of a kubeconfig. Its content stays out of Pulumi's state."""
    context: str = Field(min_length=1)
    """Context of the kubeconfig. It names the cluster in Pulumi's state: another name is another
    cluster, and everything is made anew there."""
    kubernetes_api: KubernetesApi
    storage: Storage | None = None
    """Needed for a database in the cluster and for simulated providers."""
    exposure: Exposure | None = None
    """Default: none; Services are reachable in the cluster and through ``kubectl port-forward``."""
    database: GivenDatabase | None = None
    """Default: a PostgreSQL in the cluster, on ``storage``."""
    isolation: Literal["runc", "gvisor", "kata"] = "runc"
    """What separates sandboxes (stage 2) from the node."""
    sizes: Literal["evaluation", "production"] = "production"
    """evaluation fits two cores and 4 GiB; production is what LiteLLM asks for."""
    simulate_providers: bool = False
    """Whether the model simulator stands in for real providers."""

    @model_validator(mode="after")
    def _volumes_have_a_place(self) -> Self:
        if self.storage is None and (self.database is None or self.simulate_providers):
            raise ValueError(
                "storage is required ({class} or {node, path}) for a database in the cluster and "
                "for simulated providers"
            )
        return self

    @property
    def images(self) -> tuple[str, ...]:
        """Names of the images that this cluster needs."""
        needed = ["gateway", "translator", "prometheus", "secret-bootstrap"]
        if self.database is None:
            needed.append("postgres")
        if self.simulate_providers:
            needed.append("model-simulator")
        return tuple(needed)
