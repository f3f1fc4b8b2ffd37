"""The files that containerd, the kubelet and CNI read."""

import ipaddress
import json
from collections.abc import Iterable
from pathlib import Path

import yaml

from terrace_local.cluster.files import write_file
from terrace_local.cluster.paths import (
    BRIDGE,
    CLUSTER_DOMAIN,
    DNS_ADDRESS,
    NODE_ADDRESS,
    PLUGIN_DIR,
    POD_NETWORK,
    Paths,
)

__all__ = ["CNI_NETWORK", "upstream_resolvers", "write_configuration"]

CNI_NETWORK = "terrace-pods"
CAP_SYS_RESOURCE = 24
MIB = 1024 * 1024


def write_configuration(paths: Paths, *, runc: Path, pause_ref: str, resolvers: list[str]) -> None:
    """Write every configuration file below `state/config` and `state/cni`.

    Unchanged ones are left as they are.
    """
    write_file(paths.config / "containerd.toml", _containerd(paths, runc, pause_ref))
    write_file(paths.config / "kubelet.yaml", yaml.safe_dump(_kubelet(paths)))
    write_file(
        paths.config / "resolv.conf", "".join(f"nameserver {address}\n" for address in resolvers)
    )
    write_file(paths.cni / "conf" / "10-terrace.conflist", json.dumps(_cni(paths), indent=1))


def upstream_resolvers(
    candidates: Iterable[Path] = (
        Path("/etc/resolv.conf"),
        Path("/run/systemd/resolve/resolv.conf"),
    ),
) -> list[str]:
    """The host's name servers that a pod can reach: IPv4 and not loopback, at most three.

    A stub resolver on loopback exists in the host's network namespace only.
    """
    for path in candidates:
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        found = [
            words[1]
            for line in lines
            if len(words := line.split()) >= 2 and words[0] == "nameserver"
        ]
        usable = [address for address in found if _is_usable(address)]
        if usable:
            return usable[:3]
    return []


def has_sys_resource() -> bool:
    """Whether this process may lower oom_score_adj.

    Containers and hardened machines often may not.
    """
    status = Path("/proc/self/status").read_text()
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(mask, 16) >> CAP_SYS_RESOURCE & 1)


def _is_usable(address: str) -> bool:
    try:
        parsed = ipaddress.IPv4Address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_unspecified)


def _containerd(paths: Paths, runc: Path, pause_ref: str) -> str:
    cri = "plugins.'io.containerd.cri.v1"
    return f"""version = 3
root = "{paths.containerd}"
state = "{paths.containerd_run}"
# None of these is used, and each would make directories or sockets outside of root and state.
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.opt",
  "io.containerd.image-verifier.v1.bindir",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing"]

[grpc]
  address = "{paths.containerd_socket}"

[{cri}.images']
  snapshotter = "overlayfs"
  [{cri}.images'.pinned_images]
    sandbox = "{pause_ref}"

[{cri}.runtime']
  # Without CAP_SYS_RESOURCE runc dies on a negative oom_score_adj ("can't get final child's PID
  # from pipe").
  restrict_oom_score_adj = {str(not has_sys_resource()).lower()}
  netns_mounts_under_state_dir = true
  enable_unprivileged_ports = true
  [{cri}.runtime'.cni]
    bin_dirs = ["{PLUGIN_DIR}"]
    conf_dir = "{paths.cni / "conf"}"
    use_internal_loopback = true
  [{cri}.runtime'.containerd]
    default_runtime_name = "runc"
    [{cri}.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        Root = "{paths.run / "runc"}"
        SystemdCgroup = false

[plugins.'io.containerd.grpc.v1.cri']
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
"""


def _kubelet(paths: Paths) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "port": 10250,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(paths.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(paths.pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(paths.pki / "kubelet-server.key"),
        "tlsMinVersion": "VersionTLS12",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [DNS_ADDRESS],
        "resolvConf": str(paths.config / "resolv.conf"),
        "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/terrace",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        "volumePluginDir": str(paths.kubelet / "volume-plugins"),
        "podLogsDir": str(paths.log / "pods"),
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 2,
        # Absolute, since a percentage of a large, fairly full disk of the user's would evict pods
        # for no reason.
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1Gi",
            "imagefs.available": "1Gi",
        },
        # Images come from archives, not from a registry: one that is collected cannot be pulled
        # again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "seccompDefault": True,
        "shutdownGracePeriod": "0s",
        "nodeStatusReportFrequency": "1m",
        "nodeStatusUpdateFrequency": "10s",
        "serializeImagePulls": True,
        "enableDebuggingHandlers": True,
        "enableProfilingHandler": False,
    }


def _cni(paths: Paths) -> dict[str, object]:
    return {
        "cniVersion": "1.0.0",
        "name": CNI_NETWORK,
        "plugins": [
            {
                "type": "bridge",
                "bridge": BRIDGE,
                "isGateway": True,
                # Masquerading is one table of ours (network.py) instead of two chains for each pod.
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(paths.cni / "ipam"),
                    "ranges": [[{"subnet": str(POD_NETWORK)}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }
