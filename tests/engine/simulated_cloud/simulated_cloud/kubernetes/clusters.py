"""The cluster that a provider speaks to: whether it can be reached, and what is in it."""

import ipaddress
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from ..inventory import Inventory, Item
from ..values import UNKNOWN, Properties
from .objects import Key, Manifest
from .scheduling import Node, capacity, unlimited_node

ADDRESS_VARIABLE: Final = "SIMULATED_CLOUD_ADDRESS"
"""The address that the engine calls from. The public endpoint of EKS answers to the ranges that are
open to the internet, the private one to what its security groups let in; without an address it is
somewhere in the former."""
BUILT_IN_NAMESPACES: Final = frozenset({"default", "kube-node-lease", "kube-public", "kube-system"})
_EFFECTS: Final = {
    "NO_SCHEDULE": "NoSchedule",
    "NO_EXECUTE": "NoExecute",
    "PREFER_NO_SCHEDULE": "PreferNoSchedule",
}


@dataclass(frozen=True)
class Cluster:
    """A Kubernetes cluster, by the address of its API server.

    An address of EKS is that of a cluster in the simulated AWS, and cannot be reached when there is
    none. Any other address is somebody's cluster: it is always there and has one large node.
    """

    inventory: Inventory
    server: str
    identifier: str

    @classmethod
    def of_provider(cls, inventory: Inventory, config: Properties) -> "Cluster":
        """The cluster that a provider's arguments name; without a kubeconfig, ``default``."""
        given = config.get("kubeconfig")
        if given is UNKNOWN:
            return cls(inventory, "", "not known yet")
        identifier = config.get("clusterIdentifier")
        server = _server(given, config.get("context"))
        name = identifier if isinstance(identifier, str) else server or "default"
        return cls(inventory, server, name)

    @property
    def space(self) -> str:
        """The scope in which the ids of its objects are unique."""
        return f"kubernetes/{self.server if self.is_eks else self.identifier}"

    def scope(self, level: str) -> str:
        """As a ``world.Place``: there is one scope, whatever the level."""
        del level
        return self.space

    def visible(self) -> tuple[str, ...]:
        return (self.space,)

    @property
    def is_eks(self) -> bool:
        host = urlsplit(self.server).hostname or ""
        return ".eks." in host and ".amazonaws." in host

    @property
    def eks(self) -> Item | None:
        """The EKS cluster of the simulated AWS with this address."""
        if not self.is_eks:
            return None
        found = self.inventory.items(type="aws:eks/cluster:Cluster")
        return next((item for item in found if item["endpoint"] == self.server), None)

    def unreachable(self) -> str | None:
        """Why the API server does not answer, or None."""
        if not self.is_eks:
            return None
        eks, host = self.eks, urlsplit(self.server).hostname
        if eks is None:
            return f"dial tcp: lookup {host}: no such host"
        reason = self._no_answer(eks["vpcConfig"] or {})
        return f"dial tcp: {host}: i/o timeout ({reason})" if reason else None

    def _no_answer(self, network: Mapping[str, Any]) -> str | None:
        given = os.environ.get(ADDRESS_VARIABLE)
        address = ipaddress.IPv4Address(given) if given else None
        inside = address is not None and any(address in one for one in self._vpc_ranges(network))
        if address is not None and network.get("endpointPrivateAccess"):
            # In the VPC the name resolves to the private endpoint, whatever the public one allows.
            if self._lets_in(network, address):
                return None
            if inside:
                return f"no security group of the endpoint lets in {address}"
        if network.get("endpointPublicAccess") is False:
            return "the endpoint is private"
        ranges = network.get("publicAccessCidrs") or ["0.0.0.0/0"]
        # Out of the VPC goes through a NAT whose address nobody knows.
        known = address is not None and not inside
        if known and not any(address in ipaddress.ip_network(one) for one in ranges):
            return f"{address} is not in {', '.join(ranges)}"
        return None

    def _vpc_ranges(self, network: Mapping[str, Any]) -> Iterator[ipaddress.IPv4Network]:
        for vpc in self.inventory.items(type="aws:ec2/vpc:Vpc"):
            if vpc.id == network.get("vpcId"):
                yield ipaddress.IPv4Network(vpc["cidrBlock"])

    def _lets_in(self, network: Mapping[str, Any], address: ipaddress.IPv4Address) -> bool:
        """Whether a rule of the control plane's security groups opens port 443 to the address."""
        groups = {network.get("clusterSecurityGroupId"), *(network.get("securityGroupIds") or [])}
        rules = self.inventory.items(
            type="aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule"
        )
        return any(
            rule["securityGroupId"] in groups
            and rule["cidrIpv4"] is not None
            and address in ipaddress.IPv4Network(rule["cidrIpv4"])
            and _opens_https(rule)
            for rule in rules
        )

    # --- what is in it ---

    def items(self) -> list[Item]:
        return self.inventory.items(scopes=(self.space,))

    def objects(self, *kinds: str) -> Iterator[Manifest]:
        """The objects of these kinds, oldest first."""
        return (item.inputs for item in self.items() if item.inputs.get("kind") in kinds)

    def get(self, key: Key) -> Manifest | None:
        """The object with this key, whatever its version."""
        for manifest in self.objects(key.kind):
            if Key.of(manifest, namespaced=bool(key.namespace)) == key:
                return manifest
        return None

    def has_namespace(self, name: str) -> bool:
        return name in BUILT_IN_NAMESPACES or self.get(Key("", "Namespace", "", name)) is not None

    def releases(self, chart: str) -> list[Item]:
        """The Helm releases of a chart."""
        return [
            item
            for item in self.items()
            if item.type == "kubernetes:helm.sh/v3:Release" and chart_name(item.inputs) == chart
        ]

    def nodes(self) -> list[Node]:
        """The nodes of the cluster's node groups, with all their room free."""
        if not self.is_eks:
            return [unlimited_node()]
        eks = self.eks
        groups = self.inventory.items(type="aws:eks/nodeGroup:NodeGroup") if eks else []
        nodes: list[Node] = []
        for group in groups:
            if eks is None or group["clusterName"] not in (eks.id, eks["name"]):
                continue
            size = int((group["scalingConfig"] or {}).get("desiredSize") or 0)
            instance_type = (group["instanceTypes"] or ["t3.medium"])[0]
            labels = {
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "arm64" if "g." in instance_type else "amd64",
                "node.kubernetes.io/instance-type": instance_type,
                "eks.amazonaws.com/nodegroup": str(group["nodeGroupName"]),
                **(group["labels"] or {}),
            }
            taints = [
                {**taint, "effect": _EFFECTS.get(taint["effect"], taint["effect"])}
                for taint in group["taints"] or []
            ]
            nodes += [
                Node(f"{group.id}-{index}", labels, taints, capacity(instance_type))
                for index in range(size)
            ]
        return nodes

    def has_add_on(self, name: str) -> bool:
        eks = self.eks
        return eks is not None and any(
            add_on["addonName"] == name and add_on["clusterName"] in (eks.id, eks["name"])
            for add_on in self.inventory.items(type="aws:eks/addon:Addon")
        )

    def has_identity(self, namespace: str, service_account: str) -> bool:
        """Whether EKS Pod Identity gives a service account a role."""
        eks = self.eks
        return eks is not None and any(
            one["namespace"] == namespace
            and one["serviceAccount"] == service_account
            and one["clusterName"] in (eks.id, eks["name"])
            for one in self.inventory.items(
                type="aws:eks/podIdentityAssociation:PodIdentityAssociation"
            )
        )


def _opens_https(rule: Item) -> bool:
    if rule["ipProtocol"] == "-1":
        return True
    low, high = int(rule["fromPort"] or 0), int(rule["toPort"] or 0)
    return rule["ipProtocol"] == "tcp" and low <= 443 <= high


def chart_name(inputs: Mapping[str, Any]) -> str:
    """The chart's own name, without the repository of an OCI address."""
    return str(inputs.get("chart", "")).rpartition("/")[2]


def _server(given: Any, context: Any) -> str:
    """The API server's address in a kubeconfig: an object, its text, or the path of a file."""
    document = given
    if isinstance(given, str) and given.strip():
        if "\n" not in given and not given.lstrip().startswith("{") and Path(given).exists():
            given = Path(given).read_text(encoding="utf-8")
        document = json.loads(given) if given.lstrip().startswith("{") else yaml.safe_load(given)
    if not isinstance(document, Mapping):
        return ""
    wanted = context if isinstance(context, str) else document.get("current-context")
    contexts = {one["name"]: one["context"] for one in document.get("contexts") or []}
    cluster = (contexts.get(wanted) or {}).get("cluster")
    clusters = {one["name"]: one["cluster"] for one in document.get("clusters") or []}
    found = clusters.get(cluster) or next(iter(clusters.values()), {})
    return str(found.get("server", ""))
