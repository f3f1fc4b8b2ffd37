"""QuotaSync in the cluster, beside the running platform, with a fake of AWS's APIs."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from platform_bench import (
    GATEWAY_NAMESPACE,
    Platform,
    eventually,
    kill,
    main_process,
)

from terrace_cli.tools import bin_directory
from terrace_common.names import QUOTA_SYNC, QUOTA_SYNC_METRICS_PORT
from terrace_local import cluster, images, toolchain
from terrace_local.cluster.paths import NODE_ADDRESS

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
STACK = "trial"
REGION = "us-west-2"
CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
MODEL = "trial-claude"
POOL = f"{REGION}/{CLAUDE}"
REQUESTS = "On-demand model inference requests per minute for Anthropic Claude Sonnet 4.5 V1"
KINDS = "deployments,pods,secrets,serviceaccounts,networkpolicies"

pytestmark = [pytest.mark.fault, pytest.mark.timeout(600)]


class FakeAws:
    """The fake as a process; it needs the services' environment."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [REPOSITORY / ".venv-services/bin/python", HERE / "fake_aws_process.py", NODE_ADDRESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def requests_per_minute(self, value: float) -> dict[str, int]:
        """Set the quota; the fake's port and its calls so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said = {
            "region": REGION,
            "applied": {"L-A1": [REQUESTS, value]},
            "models": [[CLAUDE, "Anthropic", "Claude Sonnet 4.5"]],
        }
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    fake = FakeAws()
    yield fake
    fake.stop()


@pytest.fixture
def image(platform: Platform) -> str:
    """quota_sync's image, in the node; the local stack itself has no use for it."""
    del platform
    with toolchain.ConsoleProgress() as progress:
        built = images.ensure_images([QUOTA_SYNC], progress=progress)
        images.load_images(
            built, loader=cluster.load_image, has_image=cluster.has_image, progress=progress
        )
    return built[QUOTA_SYNC].ref


def upstream_pools(platform: Platform) -> list[dict[str, Any]]:
    with platform.admin() as admin:
        return admin.upstream_quotas()


@pytest.fixture
def bedrock(platform: Platform) -> Iterator[None]:
    """A provider of Amazon's own Bedrock in the catalogue, which quota_sync is for; after the test
    the catalogue is as before, and the pool's caps are retired."""
    with platform.admin() as admin:
        before = admin.governance()
        spec = yaml.safe_load(before["text"])
        model = next(m for m in spec["models"] if m["name"] == "bedrock-claude")
        spec["providers"].append({"name": "trial", "kind": "bedrock", "region": REGION})
        spec["models"].append({**model, "name": MODEL, "provider": "trial", "aliases": []})
        admin.apply_governance(
            yaml.safe_dump(spec),
            base_version=before["version"],
            reason="trial",
            allow=["model-not-deployed"],
        )
    yield
    with platform.admin() as admin:
        admin.rollback_governance(
            before["version"],
            base_version=admin.governance()["version"],
            reason="trial is over",
            allow=[],
        )
    eventually(lambda: retire(platform), "the caps of the trial are retired")
    assert not [pool for pool in upstream_pools(platform) if pool["pool"].startswith(REGION)]
    assert caps(platform) == []


def retire(platform: Platform) -> bool:
    """Publish nothing, as a leader does when the catalogue has changed."""
    with platform.admin() as admin:
        lease = admin._call(
            "POST", f"/admin/v1/leases/{QUOTA_SYNC}", json={"holder": "trial", "seconds": 10}
        )
        if not lease["held"]:
            return False
        mine = {"holder": "trial", "fence": lease["fence"]}
        admin._call(
            "PUT",
            "/admin/v1/upstream-quotas",
            json={
                **mine,
                "governance_version": admin.governance()["version"],
                "stale_after_seconds": 3600,
                "stale_percent": 80,
                "reason": "trial is over",
                "regions": [],
            },
        )
        admin._call("POST", f"/admin/v1/leases/{QUOTA_SYNC}/release", json=mine)
    return True


def objects(platform: Platform) -> set[str]:
    found = platform.kubectl("-n", GATEWAY_NAMESPACE, "get", KINDS, "-o", "name").split()
    return {name for name in found if QUOTA_SYNC in name}


@contextlib.contextmanager
def quota_sync(platform: Platform, image: str, port: int, folder: Path) -> Iterator[None]:
    """Two replicas, by a Pulumi program of their own; destroyed at the end."""
    state = folder / "state"
    state.mkdir()
    for name in ("Pulumi.yaml", "__main__.py"):
        (folder / name).symlink_to(HERE / "quota_sync_stack" / name)
    aws = {
        "address": NODE_ADDRESS,
        "port": port,
        "key_id": "AKIATRIAL0123456789",
        "secret_key": "trial-aws-secret-0123456789",
    }
    config = {"quota-sync-trial:image": image, "quota-sync-trial:aws": aws}
    (folder / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump({"config": config}))
    environment = {
        **os.environ,
        "PATH": f"{bin_directory()}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": "/var/lib/terrace/kubeconfig",
        "PULUMI_BACKEND_URL": f"file://{state}",
        "PULUMI_HOME": str(folder / "pulumi"),
        "PULUMI_CONFIG_PASSPHRASE": "trial",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }

    def pulumi(*arguments: str) -> None:
        done = subprocess.run(
            [bin_directory() / "pulumi", *arguments, "--non-interactive", "--stack", STACK],
            cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, f"pulumi {arguments}:\n{done.stdout}\n{done.stderr}"

    pulumi("stack", "init")
    try:
        pulumi("up", "--yes", "--skip-preview")
        yield
    finally:
        pulumi("destroy", "--yes", "--skip-preview")
    eventually(lambda: not objects(platform), "nothing is left of quota_sync")


class Replicas:
    """The pods of quota_sync that are ready."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def pods(self) -> dict[str, dict[str, Any]]:
        document = self._platform.kubectl(
            *("-n", GATEWAY_NAMESPACE, "get", "pods", "-o", "json"),
            *("-l", f"app.kubernetes.io/name={QUOTA_SYNC}"),
        )
        return {
            pod["metadata"]["name"]: pod
            for pod in json.loads(document)["items"]
            if "deletionTimestamp" not in pod["metadata"]
            and all(c["ready"] for c in pod["status"].get("containerStatuses", [{"ready": False}]))
        }

    def ask(self, pod: dict[str, Any], path: str) -> httpx.Response:
        url = f"http://{pod['status']['podIP']}:{QUOTA_SYNC_METRICS_PORT}/{path}"
        return httpx.get(url, timeout=5, trust_env=False)

    def roles(self) -> dict[bool, list[str]]:
        """Names of pods by whether they lead."""
        found: dict[bool, list[str]] = {True: [], False: []}
        for name, pod in self.pods().items():
            found[self.ask(pod, "readyz").json()["leading"]].append(name)
        return found

    def one_leads(self) -> bool:
        return {role: len(names) for role, names in self.roles().items()} == {True: 1, False: 1}

    def reaches(self, pod: str, places: dict[str, tuple[str, int]]) -> dict[str, bool]:
        code = (
            "import json, socket, sys\n"
            "def reach(place):\n"
            "    try: socket.create_connection(place, 3).close()\n"
            "    except OSError: return False\n"
            "    return True\n"
            "print(json.dumps({n: reach(tuple(p)) for n, p in json.loads(sys.argv[1]).items()}))"
        )
        said = self._platform.kubectl(
            *("-n", GATEWAY_NAMESPACE, "exec", pod, "--", "python", "-c", code, json.dumps(places))
        )
        return json.loads(said)


@contextlib.contextmanager
def no_new_pods(platform: Platform) -> Iterator[None]:
    """The node takes no pod until the block ends."""
    platform.kubectl("cordon", "--selector=kubernetes.io/hostname")
    try:
        yield
    finally:
        platform.kubectl("uncordon", "--selector=kubernetes.io/hostname")


def in_force(platform: Platform) -> dict[str, tuple[int, int]]:
    """Dimension -> share that holds, and the fence of who published it."""
    found = [pool for pool in upstream_pools(platform) if pool["pool"] == POOL]
    return {
        quota["dimension"]: (quota["in_force"], quota["fence"])
        for pool in found
        for quota in pool["quotas"]
    }


def caps(platform: Platform) -> list[tuple[str, int, int]]:
    """Dimension, window in seconds and amount of the pool's caps, which all guards share."""
    with platform.admin() as admin:
        found = list(admin.caps("model", POOL))
    assert {cap["origin"] for cap in found} <= {"upstream"}
    return [(cap["dimension"], cap["window_seconds"], cap["amount"]) for cap in found]


@pytest.mark.usefixtures("bedrock")
def test_two_replicas_publish_quotas_and_one_goes_on_without_the_other(
    platform: Platform, aws: FakeAws, image: str, tmp_path: Path
) -> None:
    port = aws.requests_per_minute(20)["port"]
    replicas = Replicas(platform)
    with quota_sync(platform, image, port, tmp_path):
        eventually(replicas.one_leads, "two replicas are ready and one leads")
        (leader,), (other,) = replicas.roles()[True], replicas.roles()[False]
        pods = replicas.pods()
        share, fence = in_force(platform)["requests"]
        assert share == 18  # the default headroom of 10 % is taken off
        assert caps(platform) == [("requests", 60, 18)]
        assert "readings_total{" in replicas.ask(pods[leader], "metrics").text
        assert "readings_total{" not in replicas.ask(pods[other], "metrics").text

        assert replicas.reaches(
            leader,
            {
                "aws": (NODE_ADDRESS, port),
                "admin": (f"gateway-admin.{GATEWAY_NAMESPACE}", 8081),
                "gateway": (f"gateway.{GATEWAY_NAMESPACE}", 8080),
                "postgres": ("postgres.terrace-foundation", 5432),
                "simulator": ("model-simulator.terrace-providers", 8080),
                "kubernetes": (NODE_ADDRESS, 6443),
                "the other": (pods[other]["status"]["podIP"], QUOTA_SYNC_METRICS_PORT),
            },
        ) == {
            "aws": True, "admin": True, "gateway": False, "postgres": False, "simulator": False,
            "kubernetes": False, "the other": False,
        }  # fmt: skip

        aws.requests_per_minute(50)
        with no_new_pods(platform):  # else the one that comes instead may lead
            # Killed, so that it cannot give its lease back.
            kill(main_process(pods[leader], QUOTA_SYNC))
            platform.kubectl(
                *("-n", GATEWAY_NAMESPACE, "delete", "pod", leader),
                *("--grace-period=0", "--force", "--wait=false"),
            )
            eventually(lambda: in_force(platform)["requests"][0] == 45, "the other one publishes")
            assert in_force(platform)["requests"][1] > fence
            assert replicas.roles() == {True: [other], False: []}
        eventually(replicas.one_leads, "there are two again")
        said = aws.requests_per_minute(20)
        assert said["calls"] > 0
        assert said["unsigned"] == 0
