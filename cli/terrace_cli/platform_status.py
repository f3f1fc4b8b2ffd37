"""`terrace status`: cluster, workloads and gateway, in words."""

from dataclasses import asdict, dataclass, field, replace
from typing import Any

import httpx

from terrace_cli.connecting import patient_transport
from terrace_cli.endpoints import read_endpoints
from terrace_cli.errors import CliError, NotRunningError
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.kubernetes_api import KubernetesApi, WorkloadState
from terrace_cli.output import describe_bytes, describe_seconds
from terrace_cli.platform_down import holdings
from terrace_cli.platform_up import NAMESPACES
from terrace_cli.undeployed_models import undeployed_problem
from terrace_local import cluster


@dataclass(kw_only=True)
class PlatformStatus:
    """What was found. `problems` are sentences; the platform is well when there are none."""

    cluster: cluster.ClusterStatus
    workloads: list[WorkloadState] = field(default_factory=list)
    gateway: str = "not asked"
    problems: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The stable document of `terrace status --json`."""
        return {
            "well": self.is_well,
            "cluster": {
                "state": self.cluster.state,
                "identifier": self.cluster.cluster_identifier,
                "holder": self.cluster.holder,
                "parts": [
                    {
                        "name": part.name,
                        "pid": part.pid,
                        "running_seconds": part.running_seconds,
                        "resident_bytes": part.resident_bytes,
                    }
                    for part in self.cluster.parts
                ],
            },
            "workloads": [{**asdict(load), "is_ready": load.is_ready} for load in self.workloads],
            "gateway": self.gateway,
            "problems": self.problems,
        }


def read_status() -> PlatformStatus:
    """Ask each layer, from the processes up; a layer that cannot be asked becomes a problem."""
    status = PlatformStatus(cluster=cluster.status())
    if status.cluster.state == "absent" and any(item.bytes for item in holdings()):
        # Data that `up` would go on with is more than nothing, whatever else is gone.
        status.cluster = replace(status.cluster, state="stopped")
    if status.cluster.state == "absent":
        status.problems.append(
            "There is no Terrace cluster on this machine. Start it with `terrace up`."
        )
        return status
    if status.cluster.state == "stopped":
        status.problems.append(
            "The cluster is stopped and its data is kept: `terrace up` goes on with it, "
            "`terrace down --yes` deletes it."
        )
    status.problems += [str(problem) for problem in status.cluster.problems]
    if status.cluster.state == "stopped":
        return status
    _read_inside(status)
    _read_gateway(status)
    return status


def is_running() -> bool:
    """Whether the cluster's processes run, well or not."""
    return cluster.status().state in ("running", "degraded")


def _read_inside(status: PlatformStatus) -> None:
    try:
        with KubernetesApi() as kubernetes:
            status.workloads = kubernetes.workloads(NAMESPACES)
            status.problems += [
                f"{load.kind} {load.namespace}/{load.name}: {load.words()}"
                for load in status.workloads
                if not load.is_ready
            ]
            status.problems += kubernetes.pod_troubles(NAMESPACES)
    except CliError as error:
        status.problems.append(str(error))


def describe(status: PlatformStatus) -> str:
    """The status for people: a paragraph per layer, then what is wrong."""
    lines = [f"Cluster: {status.cluster.state}"]
    if status.cluster.holder:
        lines[0] += f", held by {status.cluster.holder}"
    lines += [f"  {part.name:<26} {_describe_part(part)}" for part in status.cluster.parts]
    if status.workloads:
        lines.append("Workloads")
        lines += [
            f"  {load.namespace + '/' + load.name:<40} {load.words()}" for load in status.workloads
        ]
    lines.append(f"Gateway: {status.gateway}")
    if status.problems:
        lines.append("What is wrong")
        lines += [f"  {problem}" for problem in status.problems]
    else:
        lines.append("All is well.")
    return "\n".join(lines)


def _describe_part(part: cluster.PartStatus) -> str:
    if part.pid is None:
        return "does not run"
    told = f"runs, pid {part.pid}"
    if part.running_seconds is not None:
        told += f", for {describe_seconds(part.running_seconds)}"
    if part.resident_bytes is not None:
        told += f", {describe_bytes(part.resident_bytes)}"
    return told


def _read_gateway(status: PlatformStatus) -> None:
    try:
        gateway = read_endpoints().gateway
    except NotRunningError as error:
        status.gateway = "unknown"
        status.problems.append(str(error))
        return
    try:
        with httpx.Client(transport=patient_transport(), timeout=5, trust_env=False) as client:
            answer = client.get(f"{gateway}/readyz")
        status.gateway = "ready" if answer.is_success else f"not ready: {answer.text[:200]}"
    except httpx.TransportError as error:
        status.gateway = f"no answer ({type(error).__name__})"
    if status.gateway != "ready":
        status.problems.append(f"The gateway at {gateway}: {status.gateway}")
        return
    try:
        with GatewayAdmin.of_this_machine() as admin:
            problem = undeployed_problem(admin)
    except CliError as error:
        problem = f"The gateway's models could not be asked for: {error}"
    if problem is not None:
        status.problems.append(problem)
