"""NetworkPolicy rules as data: a namespace denies everything, each workload opens what it needs.

Traffic of the node itself (kubelet's probes, NodePorts from the machine) is always admitted by
policy enforcers, so it needs no rule here; that is why the admin port has none.
"""

from urllib.parse import urlsplit

from pulumi_kubernetes.networking.v1 import (
    NetworkPolicyEgressRuleArgsDict,
    NetworkPolicyIngressRuleArgsDict,
    NetworkPolicyPeerArgsDict,
    NetworkPolicyPortArgsDict,
    NetworkPolicySpecArgsDict,
)

from terrace_common.names import LABEL_NAME
from terrace_components.arguments import Address, PodPeer

NAMESPACE_NAME = "kubernetes.io/metadata.name"
DNS_PORT = 53
SERVICE_AND_NAMESPACE = 2
# Private, link-local (cloud metadata) and carrier ranges: "the internet" is the rest.
NOT_THE_INTERNET = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
]
THE_INTERNET = "0.0.0.0/0"
# Where the agent of EKS Pod Identity answers on each node, over IPv4 and over IPv6.
POD_IDENTITY_AGENT = (
    Address(cidr="169.254.170.23/32", port=80),
    Address(cidr="fd00:ec2::23/128", port=80),
)


def pods(peer: PodPeer) -> NetworkPolicyPeerArgsDict:
    """Selector of the pods of ``peer``."""
    selector: NetworkPolicyPeerArgsDict = {
        "namespace_selector": {"match_labels": {NAMESPACE_NAME: peer.namespace}}
    }
    if peer.pod is not None:
        selector["pod_selector"] = {"match_labels": {LABEL_NAME: peer.pod}}
    return selector


def tcp(port: int) -> list[NetworkPolicyPortArgsDict]:
    """The ports of a rule for one TCP port."""
    return [{"protocol": "TCP", "port": port}]


def to_pods(peer: PodPeer) -> NetworkPolicyEgressRuleArgsDict:
    """Egress to a port of pods."""
    return {"to": [pods(peer)], "ports": tcp(peer.port)}


def to_address(address: Address) -> NetworkPolicyEgressRuleArgsDict:
    """Egress to a port of an address range."""
    return {"to": [{"ip_block": {"cidr": address.cidr}}], "ports": tcp(address.port)}


def to_dns() -> NetworkPolicyEgressRuleArgsDict:
    """Egress to the cluster's DNS (CoreDNS, labelled as everywhere: ``k8s-app: kube-dns``)."""
    return {
        "to": [
            {
                "namespace_selector": {"match_labels": {NAMESPACE_NAME: "kube-system"}},
                "pod_selector": {"match_labels": {"k8s-app": "kube-dns"}},
            }
        ],
        "ports": [{"protocol": "UDP", "port": DNS_PORT}, {"protocol": "TCP", "port": DNS_PORT}],
    }


def to_url(url: str) -> NetworkPolicyEgressRuleArgsDict:
    """Egress to the host and port of a URL.

    ``service.namespace.svc`` and, over plain http, ``service.namespace`` are pods of that
    namespace (whose port must be the Service's); an IP address is itself; any other name is the
    internet, at that port only, such as ``https://example.com``.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    service = host.removesuffix(".cluster.local").removesuffix(".svc")
    labels = service.split(".")
    inside = service != host or parts.scheme == "http"
    if inside and len(labels) == SERVICE_AND_NAMESPACE:
        return to_pods(PodPeer(namespace=labels[1], port=port))
    if all(label.isdecimal() for label in labels):
        return to_address(Address(cidr=f"{host}/32", port=port))
    return to_internet(port)


def to_internet(port: int) -> NetworkPolicyEgressRuleArgsDict:
    """Egress to a port of any public address."""
    return {
        "to": [{"ip_block": {"cidr": THE_INTERNET, "except_": NOT_THE_INTERNET}}],
        "ports": tcp(port),
    }


def to_pod_identity() -> list[NetworkPolicyEgressRuleArgsDict]:
    """Egress to the agent that gives a pod its AWS credentials."""
    return [to_address(address) for address in POD_IDENTITY_AGENT]


def from_pods(peer: PodPeer) -> NetworkPolicyIngressRuleArgsDict:
    """Ingress from pods to ``peer.port`` of the selected ones."""
    return {"from_": [pods(peer)], "ports": tcp(peer.port)}


def from_anywhere(port: int) -> NetworkPolicyIngressRuleArgsDict:
    """Ingress to a public port."""
    return {"ports": tcp(port)}


def policy_spec(
    name: str,
    *,
    ingress: list[NetworkPolicyIngressRuleArgsDict],
    egress: list[NetworkPolicyEgressRuleArgsDict],
) -> NetworkPolicySpecArgsDict:
    """What the pods named ``name`` may receive and send."""
    return {
        "pod_selector": {"match_labels": {LABEL_NAME: name}},
        "policy_types": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
