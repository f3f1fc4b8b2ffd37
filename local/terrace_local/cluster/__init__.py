"""The embedded one-node Kubernetes: real parts as host processes, one cluster per machine."""

from terrace_local.cluster.errors import (
    ClusterError,
    HeldByAnother,
    NotRunning,
    PreflightFailed,
    Problem,
    StartTimeout,
)
from terrace_local.cluster.lifecycle import ClusterInfo, preflight, up
from terrace_local.cluster.paths import Paths
from terrace_local.cluster.status import ClusterStatus, PartStatus, status
from terrace_local.cluster.stop import down, may_go_down
from terrace_local.cluster.substrate import has_image, load_image, write_substrate
from terrace_local.cluster.teardown import DownReport

__all__ = [
    "ClusterError",
    "ClusterInfo",
    "ClusterStatus",
    "DownReport",
    "HeldByAnother",
    "NotRunning",
    "PartStatus",
    "Paths",
    "PreflightFailed",
    "Problem",
    "StartTimeout",
    "down",
    "has_image",
    "load_image",
    "may_go_down",
    "preflight",
    "status",
    "up",
    "write_substrate",
]
