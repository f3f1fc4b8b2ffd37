"""What the cluster itself runs inside Kubernetes: the rights of the host processes, and CoreDNS."""

from typing import Any

from terrace_local.cluster.api import Api
from terrace_local.cluster.paths import CLUSTER_DOMAIN, DNS_ADDRESS

__all__ = ["DNS_LABELS", "apply_dns", "apply_rights", "corefile"]

RBAC = "/apis/rbac.authorization.k8s.io/v1"
SYSTEM = "kube-system"
DNS_LABELS = {"k8s-app": "kube-dns"}
COMMON_LABELS = {
    "app.kubernetes.io/part-of": "terrace",
    "app.kubernetes.io/managed-by": "terrace-local",
}
ROUTER_RULES = [
    {
        "apiGroups": [""],
        "resources": ["namespaces", "pods", "services", "nodes", "endpoints"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["networking.k8s.io"],
        "resources": ["networkpolicies"],
        "verbs": ["get", "list", "watch"],
    },
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    },
]
DNS_RULES = [
    {
        "apiGroups": [""],
        "resources": ["services", "pods", "namespaces"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    },
]


def apply_rights(api: Api) -> None:
    """Let the API server call the kubelet, and kube-router read what it enforces."""
    _cluster_role(api, "terrace:kube-router", ROUTER_RULES)
    _bind(api, "terrace:kube-router", "terrace:kube-router", _user("terrace:kube-router"))
    _bind(
        api,
        "terrace:apiserver-kubelet-client",
        "system:kubelet-api-admin",
        _user("terrace:apiserver-kubelet-client"),
    )


def apply_dns(api: Api, *, image: str, resolvers: list[str]) -> None:
    """CoreDNS, named and labelled as on EKS."""
    core, namespaced = (
        f"/api/v1/namespaces/{SYSTEM}",
        {"namespace": SYSTEM, "labels": COMMON_LABELS | DNS_LABELS},
    )
    _cluster_role(api, "system:coredns", DNS_RULES)
    subject = {"kind": "ServiceAccount", "name": "coredns", "namespace": SYSTEM}
    _bind(api, "system:coredns", "system:coredns", subject)
    api.apply(
        f"{core}/serviceaccounts/coredns",
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "coredns", **namespaced},
        },
    )
    api.apply(
        f"{core}/configmaps/coredns",
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "coredns", **namespaced},
            "data": {"Corefile": corefile(resolvers)},
        },
    )
    api.apply(
        f"/apis/apps/v1/namespaces/{SYSTEM}/deployments/coredns",
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "coredns", **namespaced},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": DNS_LABELS},
                "template": {
                    "metadata": {"labels": COMMON_LABELS | DNS_LABELS},
                    "spec": _dns_pod(image),
                },
            },
        },
    )
    _free_orphaned_address(api)
    api.apply(
        f"{core}/services/kube-dns",
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", **namespaced},
            "spec": {
                "clusterIP": DNS_ADDRESS,
                "selector": DNS_LABELS,
                "ports": [
                    {"name": "dns", "port": 53, "protocol": "UDP", "targetPort": 53},
                    {"name": "dns-tcp", "port": 53, "protocol": "TCP", "targetPort": 53},
                ],
            },
        },
    )


def corefile(resolvers: list[str]) -> str:
    """CoreDNS's configuration.

    Without a resolver of the host's, names outside the cluster are refused at once.
    """
    forward = (
        f"\n    forward . {' '.join(resolvers)} {{\n        max_concurrent 1000\n    }}"
        if resolvers
        else ""
    )
    return f""".:53 {{
    errors
    health {{
        lameduck 2s
    }}
    ready
    kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        fallthrough in-addr.arpa ip6.arpa
        ttl 30
    }}
    prometheus :9153{forward}
    cache 30
    loop
    reload 5s
}}
"""


def _free_orphaned_address(api: Api) -> None:
    """Give back the DNS address when it is taken in the name of a Service that does not exist.

    A call cut off between taking the address and storing the Service leaves it so for minutes.
    """
    address = f"/apis/networking.k8s.io/v1/ipaddresses/{DNS_ADDRESS}"
    if api.get(f"/api/v1/namespaces/{SYSTEM}/services/kube-dns") is not None:
        return
    parent = (api.get(address) or {}).get("spec", {}).get("parentRef", {})
    if parent.get("namespace") == SYSTEM and parent.get("name") == "kube-dns":
        api.delete(address)


def _dns_pod(image: str) -> dict[str, Any]:
    return {
        "serviceAccountName": "coredns",
        "priorityClassName": "system-cluster-critical",
        # CoreDNS answers for the cluster, so it must not ask the cluster.
        "dnsPolicy": "Default",
        "terminationGracePeriodSeconds": 5,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "coredns",
                "image": image,
                "imagePullPolicy": "Never",
                "args": ["-conf", "/etc/coredns/Corefile"],
                "ports": [
                    {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                    {"name": "dns-tcp", "containerPort": 53, "protocol": "TCP"},
                    {"name": "metrics", "containerPort": 9153, "protocol": "TCP"},
                ],
                "resources": {
                    "requests": {"cpu": "20m", "memory": "40Mi"},
                    "limits": {"memory": "170Mi"},
                },
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 2},
                "livenessProbe": {
                    "httpGet": {"path": "/health", "port": 8080},
                    "initialDelaySeconds": 30,
                    "timeoutSeconds": 5,
                    "failureThreshold": 5,
                },
                "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "coredns"}}],
    }


def _cluster_role(api: Api, name: str, rules: list[dict[str, Any]]) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name, "labels": COMMON_LABELS},
    }
    api.apply(f"{RBAC}/clusterroles/{name}", {**role, "rules": rules})


def _bind(api: Api, name: str, role: str, subject: dict[str, str]) -> None:
    api.apply(
        f"{RBAC}/clusterrolebindings/{name}",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": COMMON_LABELS},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": role,
            },
            "subjects": [subject],
        },
    )


def _user(name: str) -> dict[str, str]:
    return {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
