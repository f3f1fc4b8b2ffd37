"""Where everything of the embedded cluster lives, and the addresses it uses (docs/contracts.md)."""

import os
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

__all__ = [
    "API_PORT",
    "API_URL",
    "BRIDGE",
    "CLUSTER_DOMAIN",
    "DNS_ADDRESS",
    "NODE_ADDRESS",
    "NODE_LINK",
    "NODE_NAME",
    "NODE_NETWORK",
    "PLUGIN_DIR",
    "POD_NETWORK",
    "SERVICE_API_ADDRESS",
    "SERVICE_NETWORK",
    "SYSTEM_PATH",
    "Paths",
]

NODE_NAME = "terrace-local"
NODE_ADDRESS = "10.89.0.1"
NODE_LINK = "terrace0"
NODE_NETWORK = IPv4Network("10.89.0.0/16")
BRIDGE = "terrace-br0"
POD_NETWORK = IPv4Network("10.88.0.0/16")
SERVICE_NETWORK = IPv4Network("10.96.0.0/16")
SERVICE_API_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
API_PORT = 6443
API_URL = f"https://{NODE_ADDRESS}:{API_PORT}"
PLUGIN_DIR = Path("/usr/lib/cni")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

DEFAULT_STATE = Path("/var/lib/terrace")
DEFAULT_RUN = Path("/run/terrace")


@dataclass(frozen=True)
class Paths:
    """The cluster's files. `state` outlives a reboot, `run` does not have to."""

    state: Path
    run: Path

    @classmethod
    def default(cls) -> "Paths":
        """`/var/lib/terrace` and `/run/terrace`, or both below `TERRACE_STATE_DIR` if set."""
        override = os.environ.get("TERRACE_STATE_DIR")
        if override and Path(override) != DEFAULT_STATE:
            return cls(Path(override), Path(override) / "run")
        return cls(DEFAULT_STATE, DEFAULT_RUN)

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def holder(self) -> Path:
        return self.state / "holder.json"

    @property
    def cluster(self) -> Path:
        return self.state / "cluster.json"

    @property
    def machine(self) -> Path:
        return self.state / "machine.json"

    @property
    def processes(self) -> Path:
        return self.state / "processes"

    @property
    def log(self) -> Path:
        return self.state / "log"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def config(self) -> Path:
        return self.state / "config"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def containerd(self) -> Path:
        return self.state / "containerd"

    @property
    def kubelet(self) -> Path:
        return self.state / "kubelet"

    @property
    def cni(self) -> Path:
        return self.state / "cni"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def pulumi(self) -> Path:
        return self.state / "pulumi"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def substrate(self) -> Path:
        return self.state / "substrate.json"

    @property
    def containerd_run(self) -> Path:
        return self.run / "containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.containerd_run / "containerd.sock"
