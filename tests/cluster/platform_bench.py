"""The whole platform as its tests handle it: commands, keys, calls, books, processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from terrace_cli.connecting import patient_transport
from terrace_cli.endpoints import Endpoints, read_endpoints
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.smoke.books import Comparison, SimulatorBill, compare
from terrace_cli.tools import bin_directory
from terrace_local.cluster import cgroups

TERRACE = str(Path(sys.executable).with_name("terrace"))
MODEL = "sim-small"
GATEWAY_NAMESPACE = "terrace-gateway"


def terrace(
    *arguments: str, expect: int | None = 0, timeout: float = 900, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `terrace ...`; asserts its exit code unless `expect` is None."""
    done = subprocess.run(
        [TERRACE, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )
    if expect is not None:
        assert done.returncode == expect, f"terrace {arguments}: {done.returncode}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done


def eventually(check: Callable[[], bool], what: str, seconds: float = 120) -> None:
    """Wait until something becomes true; a check that raises is not true yet."""
    deadline = time.monotonic() + seconds
    last = ""
    while True:
        try:
            if check():
                return
        except Exception as error:
            last = f" ({error})"
        assert time.monotonic() < deadline, f"never became true: {what}{last}"
        time.sleep(0.3)


def patient_client() -> httpx.Client:
    """For what must not end because a connection was refused for a moment."""
    return httpx.Client(transport=patient_transport(), trust_env=False)


class Platform:
    """A running platform. Keys made here are remembered, so that their books can be compared."""

    def __init__(self) -> None:
        self.endpoints: Endpoints = read_endpoints()
        self.bill = SimulatorBill(self.endpoints.simulator)

    def admin(self) -> GatewayAdmin:
        return GatewayAdmin.connect()

    def new_key(self, **limits: Any) -> dict[str, Any]:
        with self.admin() as admin:
            return admin.create_key(team="cluster-tests", **limits)

    def key_state(self, key_id: str) -> dict[str, Any]:
        with self.admin() as admin:
            return next(k for k in admin.keys("cluster-tests")["keys"] if k["key_id"] == key_id)

    def ledger(self, key_id: str) -> list[dict[str, Any]]:
        with self.admin() as admin:
            return list(admin.ledger(key_id))

    def compare(self, key_id: str, *, after: int) -> Comparison:
        """This key's ledger against every line of the bill after a number: nobody else calls."""
        return compare(self.ledger(key_id), self.bill.entries(after=after))

    def call(
        self, key: str, *, client: httpx.Client | None = None, timeout: float = 60
    ) -> httpx.Response:
        """One chat completion of the small model."""
        if client is None:
            with patient_client() as one:
                return self.call(key, client=one, timeout=timeout)
        return client.post(
            f"{self.endpoints.gateway}/v1/chat/completions",
            headers={"authorization": f"Bearer {key}"},
            json={
                "model": MODEL,
                "messages": [{"role": "user", "content": "count"}],
                "max_tokens": 16,
            },
            timeout=timeout,
        )

    def set_faults(self, *faults: dict[str, Any]) -> None:
        with patient_client() as client:
            client.put(
                f"{self.endpoints.simulator}/control/faults", json=list(faults)
            ).raise_for_status()

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        done = subprocess.run(
            [bin_directory() / "kubectl", "--kubeconfig=/var/lib/terrace/kubeconfig", *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"kubectl {arguments}: {done.stderr}"
        return done.stdout

    def gateway_pods(self) -> list[dict[str, Any]]:
        """The ready pods of the gateway."""
        document = self.kubectl("-n", GATEWAY_NAMESPACE, "get", "pods", "-o", "json")
        return [
            pod
            for pod in json.loads(document)["items"]
            if pod["metadata"]["name"].startswith("gateway-")
            and "deletionTimestamp" not in pod["metadata"]
            and all(c["ready"] for c in pod["status"].get("containerStatuses", [{"ready": False}]))
        ]

    def scale_gateway(self, replicas: int) -> None:
        """Returns when exactly so many pods of the gateway are there, and are ready."""
        self.kubectl(
            *("-n", GATEWAY_NAMESPACE, "scale", "statefulset/gateway", f"--replicas={replicas}")
        )

        def counted() -> bool:
            found = self.kubectl("-n", GATEWAY_NAMESPACE, "get", "pods", "-o", "name").split()
            return len(found) == len(self.gateway_pods()) == replicas

        eventually(counted, f"{replicas} gateway pods", 480)

    def claims(self) -> dict[str, str]:
        """The gateway's claims: name -> name of the volume."""
        document = self.kubectl("-n", GATEWAY_NAMESPACE, "get", "pvc", "-o", "json")
        return {
            claim["metadata"]["name"]: claim["spec"]["volumeName"]
            for claim in json.loads(document)["items"]
        }

    def wait_ready(self, replicas: int = 2) -> None:
        eventually(
            lambda: len(self.gateway_pods()) >= replicas, f"{replicas} gateway pods are ready", 240
        )

        def answers() -> bool:
            return httpx.get(
                f"{self.endpoints.gateway}/readyz", timeout=5, trust_env=False
            ).is_success

        eventually(answers, "the gateway is ready")


def main_process(pod: dict[str, Any], container: str) -> int:
    """Pid of a container's first process, found by the container's id in its cgroup."""
    # The translator is a sidecar: an init container that goes on running.
    statuses = [
        *pod["status"]["containerStatuses"],
        *pod["status"].get("initContainerStatuses", []),
    ]
    status = next(s for s in statuses if s["name"] == container)
    identifier = status["containerID"].removeprefix("containerd://")
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if identifier not in (directory / "cgroup").read_text():
                continue
            lines = (directory / "status").read_text().splitlines()
            inner = next(line for line in lines if line.startswith("NSpid:")).split()[-1]
            if inner == "1":
                return int(directory.name)
    raise AssertionError(f"no process of container {container} ({identifier})")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def resident_bytes() -> int:
    """Memory of all processes of the cluster, shared pages counted once (PSS)."""
    total = 0
    for pid in cgroups.members():
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total
