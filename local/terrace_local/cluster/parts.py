"""The eight host processes of the cluster and their flags.

Why a flag is there is said where it is not obvious.
"""

from pathlib import Path

from terrace_local.cluster.paths import (
    API_PORT,
    NODE_ADDRESS,
    NODE_NAME,
    POD_NETWORK,
    SERVICE_NETWORK,
    SYSTEM_PATH,
    Paths,
)
from terrace_local.cluster.pki import kubeconfig_path
from terrace_local.cluster.processes import Process

__all__ = ["PARTS", "PORTS", "STOP_ORDER", "parts"]

# In the order in which they are started.
PARTS = (
    "etcd",
    "containerd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
    "kube-router",
)
# The kubelet first, or it would start again what is being stopped; the store last.
STOP_ORDER = (
    ("kubelet", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kube-router"),
    ("containerd", "kube-apiserver"),
    ("etcd",),
)
PORTS: tuple[tuple[str, int, str], ...] = (
    ("127.0.0.1", 2379, "etcd"),
    ("127.0.0.1", 2380, "etcd"),
    (NODE_ADDRESS, API_PORT, "kube-apiserver"),
    (NODE_ADDRESS, 10250, "kubelet"),
    ("127.0.0.1", 10248, "kubelet"),
    ("127.0.0.1", 10249, "kube-proxy"),
    ("127.0.0.1", 10256, "kube-proxy"),
    ("127.0.0.1", 10257, "kube-controller-manager"),
    ("127.0.0.1", 10259, "kube-scheduler"),
)


def parts(paths: Paths, binaries: Path) -> dict[str, Process]:
    """Every part, ready to be started from `binaries`, the toolchain's directory."""
    pki, config = paths.pki, paths.config

    def part(name: str, *flags: str, inputs: tuple[Path, ...] = (), **environment: str) -> Process:
        base = {"PATH": f"{binaries}:{SYSTEM_PATH}", "HOME": "/nonexistent", "LANG": "C.UTF-8"}
        return Process(name, (str(binaries / name), *flags), base | environment, inputs)

    def client(name: str) -> Path:
        return kubeconfig_path(paths, name)

    etcd_server = (pki / "etcd-server.crt", pki / "etcd-server.key", pki / "etcd-ca.crt")
    all_parts = (
        part(
            "etcd",
            f"--name={NODE_NAME}",
            f"--data-dir={paths.etcd}",
            "--listen-client-urls=https://127.0.0.1:2379",
            "--advertise-client-urls=https://127.0.0.1:2379",
            "--listen-peer-urls=https://127.0.0.1:2380",
            "--initial-advertise-peer-urls=https://127.0.0.1:2380",
            f"--initial-cluster={NODE_NAME}=https://127.0.0.1:2380",
            "--client-cert-auth=true",
            f"--trusted-ca-file={etcd_server[2]}",
            f"--cert-file={etcd_server[0]}",
            f"--key-file={etcd_server[1]}",
            "--peer-client-cert-auth=true",
            f"--peer-trusted-ca-file={etcd_server[2]}",
            f"--peer-cert-file={etcd_server[0]}",
            f"--peer-key-file={etcd_server[1]}",
            "--snapshot-count=10000",
            "--log-level=warn",
            inputs=etcd_server,
        ),
        part(
            "containerd",
            f"--config={config / 'containerd.toml'}",
            inputs=(config / "containerd.toml",),
        ),
        part(
            "kube-apiserver",
            f"--advertise-address={NODE_ADDRESS}",
            f"--bind-address={NODE_ADDRESS}",
            f"--secure-port={API_PORT}",
            "--etcd-servers=https://127.0.0.1:2379",
            f"--etcd-cafile={pki / 'etcd-ca.crt'}",
            f"--etcd-certfile={pki / 'etcd-client.crt'}",
            f"--etcd-keyfile={pki / 'etcd-client.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            "--tls-min-version=VersionTLS12",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'apiserver-kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'apiserver-kubelet-client.key'}",
            # exec and logs would otherwise try to resolve the node's name.
            "--kubelet-preferred-address-types=InternalIP",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'service-account.key'}",
            f"--service-account-signing-key-file={pki / 'service-account.key'}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--anonymous-auth=false",
            "--profiling=false",
            "--allow-privileged=true",
            f"--encryption-provider-config={pki / 'encryption.yaml'}",
            "--max-requests-inflight=200",
            "--max-mutating-requests-inflight=100",
            # One server: handing connections over to peers is not needed, and a quick stop is.
            "--shutdown-delay-duration=0s",
            inputs=tuple(
                pki / name
                for name in (
                    "etcd-client.crt",
                    "ca.crt",
                    "apiserver.crt",
                    "apiserver-kubelet-client.crt",
                    "service-account.key",
                    "encryption.yaml",
                )
            ),
            GOGC="60",
        ),
        part(
            "kube-controller-manager",
            f"--kubeconfig={client('kube-controller-manager')}",
            f"--authentication-kubeconfig={client('kube-controller-manager')}",
            f"--authorization-kubeconfig={client('kube-controller-manager')}",
            "--bind-address=127.0.0.1",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'loopback-server.crt'}",
            f"--tls-private-key-file={pki / 'loopback-server.key'}",
            f"--root-ca-file={pki / 'ca.crt'}",
            f"--service-account-private-key-file={pki / 'service-account.key'}",
            "--use-service-account-credentials=true",
            # Not used; its default is made below /usr/libexec.
            f"--flex-volume-plugin-dir={paths.kubelet / 'volume-plugins'}",
            "--leader-elect=false",
            "--profiling=false",
            inputs=(
                client("kube-controller-manager"),
                *(pki / f for f in ("service-account.key", "loopback-server.crt", "ca.crt")),
            ),
            GOGC="60",
        ),
        part(
            "kube-scheduler",
            f"--kubeconfig={client('kube-scheduler')}",
            f"--authentication-kubeconfig={client('kube-scheduler')}",
            f"--authorization-kubeconfig={client('kube-scheduler')}",
            "--bind-address=127.0.0.1",
            f"--client-ca-file={pki / 'ca.crt'}",
            f"--tls-cert-file={pki / 'loopback-server.crt'}",
            f"--tls-private-key-file={pki / 'loopback-server.key'}",
            "--leader-elect=false",
            "--profiling=false",
            inputs=(client("kube-scheduler"), pki / "loopback-server.crt", pki / "ca.crt"),
        ),
        part(
            "kubelet",
            f"--config={config / 'kubelet.yaml'}",
            f"--kubeconfig={client('kubelet')}",
            f"--root-dir={paths.kubelet}",
            f"--cert-dir={paths.kubelet / 'pki'}",
            f"--hostname-override={NODE_NAME}",
            f"--node-ip={NODE_ADDRESS}",
            inputs=(
                config / "kubelet.yaml",
                config / "resolv.conf",
                client("kubelet"),
                pki / "kubelet-server.crt",
                pki / "ca.crt",
            ),
        ),
        part(
            "kube-proxy",
            f"--kubeconfig={client('kube-proxy')}",
            f"--hostname-override={NODE_NAME}",
            "--proxy-mode=nftables",
            f"--cluster-cidr={POD_NETWORK}",
            f"--nodeport-addresses={NODE_ADDRESS}/32",
            "--metrics-bind-address=127.0.0.1:10249",
            "--healthz-bind-address=127.0.0.1:10256",
            # nf_conntrack's sysctls are the machine's, not ours (and read-only in many containers).
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0s",
            "--conntrack-tcp-timeout-close-wait=0s",
            inputs=(client("kube-proxy"),),
        ),
        part(
            "kube-router",
            f"--kubeconfig={client('kube-router')}",
            f"--hostname-override={NODE_NAME}",
            "--run-router=false",
            "--run-service-proxy=false",
            "--run-loadbalancer=false",
            "--run-firewall=true",
            "--enable-cni=false",
            "--enable-ipv6=false",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--health-port=0",
            "--metrics-port=0",
            inputs=(client("kube-router"),),
        ),
    )
    return {process.name: process for process in all_parts}
