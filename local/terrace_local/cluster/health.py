"""Whether each part does its work, as a sentence about what is wrong, or None."""

import contextlib
import secrets
import socket
import ssl
import struct
from typing import Any

import httpx

from terrace_local.cluster import network
from terrace_local.cluster.api import Api
from terrace_local.cluster.paths import (
    CLUSTER_DOMAIN,
    DNS_ADDRESS,
    NODE_NAME,
    SERVICE_API_ADDRESS,
    Paths,
)

__all__ = ["CHECKED", "condition", "dns_problem", "node_problem", "part_problem", "registered"]

URLS = {
    "kube-controller-manager": "https://127.0.0.1:10257/healthz",
    "kube-scheduler": "https://127.0.0.1:10259/healthz",
    "kubelet": "http://127.0.0.1:10248/healthz",
    "kube-proxy": "http://127.0.0.1:10256/livez",
}
# kube-router has no health port that could be bound to loopback; its chains show its work.
CHECKED = (*URLS, "kube-router")
ROUTER_CHAIN = "KUBE-ROUTER-FORWARD"


def part_problem(name: str, paths: Paths) -> str | None:
    """None when the part says that it is well."""
    if name == "kube-router":
        rules = network.run("iptables", "-w", "-S", ROUTER_CHAIN, check=False)
        return (
            None if rules else "network policies are not enforced: its iptables chains are absent"
        )
    try:
        authority = ssl.create_default_context(cafile=str(paths.pki / "ca.crt"))
        answer = httpx.get(URLS[name], verify=authority, timeout=3.0, trust_env=False)
    except (httpx.TransportError, OSError) as error:
        return f"no answer at {URLS[name]} ({error})"
    return None if answer.is_success else f"{answer.status_code} {answer.text[:200]}"


def registered(api: Api) -> bool:
    """Whether the node is known to the API server."""
    return api.get(f"/api/v1/nodes/{NODE_NAME}") is not None


def node_problem(api: Api) -> str | None:
    """None when the node takes pods, else why it does not, in the kubelet's words."""
    node = api.get(f"/api/v1/nodes/{NODE_NAME}")
    if node is None:
        return "the kubelet has not registered it"
    ready = condition(node, "Ready")
    if ready.get("status") == "True":
        return None
    said = ready.get("message", "the kubelet has not reported")
    return f"{ready.get('reason', 'unknown')}: {said}"


def dns_problem(api: Api) -> str | None:
    """None when the cluster's names resolve, else why not.

    The question goes over the Service's address, so an answer proves pod, network and Service. What
    Kubernetes says about the Deployment may be older than a crash, and only explains.
    """
    if _resolves(f"kubernetes.default.svc.{CLUSTER_DOMAIN}", SERVICE_API_ADDRESS):
        return None
    deployment = api.get("/apis/apps/v1/namespaces/kube-system/deployments/coredns")
    if deployment is None:
        return "its Deployment is absent"
    if deployment.get("status", {}).get("availableReplicas", 0) >= 1:
        return f"{DNS_ADDRESS}:53 does not answer"
    return str(condition(deployment, "Available").get("message", "no replica is available"))


def condition(kubernetes_object: dict[str, Any], kind: str) -> dict[str, Any]:
    """The named condition of an object's status, or an empty one."""
    found = kubernetes_object.get("status", {}).get("conditions", ())
    return next((c for c in found if c.get("type") == kind), {})


def _resolves(name: str, address: str) -> bool:
    """Ask cluster DNS for the A record (RFC 1035) and compare."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    identity = secrets.token_bytes(2)
    question = identity + struct.pack("!5H", 0x0100, 1, 0, 0, 0) + labels + b"\0\0\x01\0\x01"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.settimeout(1.0)
        with contextlib.suppress(OSError):
            udp.connect((DNS_ADDRESS, 53))
            udp.send(question)
            answer = udp.recv(512)
            return answer[:2] == identity and answer.endswith(socket.inet_aton(address))
    return False
