"""The substrate `existing`: the embedded cluster stands in for somebody's, who has things in it.

The whole platform comes and goes by a kubeconfig and a context alone: `terrace up`, its state and
`substrate.json` have no part in it.
"""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from terrace_common.names import IMAGES
from terrace_local import cluster, images, toolchain

REPOSITORY = Path(__file__).resolve().parents[2]
STACK = "somebodys"
CONTEXT = "somebodys-cluster"
NODE_PORTS = {"gateway": 30400, "gateway-admin": 30401}
THEIRS = """
apiVersion: v1
kind: Namespace
metadata: {name: theirs}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: kept, namespace: theirs}
data: {answer: "42"}
"""
# Everything that the platform makes outside of its own namespaces would be one of these.
CLUSTER_WIDE = (
    "namespaces,persistentvolumes,clusterroles,clusterrolebindings,customresourcedefinitions,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,"
    "validatingwebhookconfigurations,mutatingwebhookconfigurations,storageclasses,priorityclasses"
)

pytestmark = pytest.mark.timeout(2400)


class Somebody:
    """A platform engineer with a kubeconfig, the Pulumi CLI and a copy of the project."""

    def __init__(self, folder: Path, binaries: Path) -> None:
        self.folder = folder
        state = folder / "state"
        state.mkdir()
        self._pulumi = binaries / "pulumi"
        self._environment = {
            "PATH": f"{binaries}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "PULUMI_BACKEND_URL": f"file://{state}",
            "PULUMI_HOME": str(folder / "pulumi"),
            "PULUMI_CONFIG_PASSPHRASE": "correct-horse-battery",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
            "NO_COLOR": "1",
        }
        for name in ("Pulumi.yaml", "blueprints"):
            (folder / name).symlink_to(REPOSITORY / name)

    def configure(self, existing: dict[str, Any], references: dict[str, str]) -> None:
        """The committed example, with what only the owner of the cluster knows."""
        document = yaml.safe_load((REPOSITORY / "Pulumi.existing.yaml").read_text())
        document["config"]["terrace:existing"] |= existing
        document["config"]["terrace:images"] = references
        document["config"]["terrace:gateway"] = {"minReplicas": 1}
        (self.folder / f"Pulumi.{STACK}.yaml").write_text(yaml.safe_dump(document))
        self.pulumi("stack", "init", STACK)

    def pulumi(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._pulumi, *arguments, "--non-interactive"],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert done.returncode == 0, f"pulumi {arguments}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def outputs(self) -> dict[str, Any]:
        return json.loads(self.pulumi("stack", "output", "--json", "--stack", STACK))


@pytest.fixture
def references(running: cluster.ClusterInfo, paths: cluster.Paths) -> dict[str, str]:
    """Terrace's images, where this cluster finds them."""
    del running
    with toolchain.ConsoleProgress() as progress:
        built = images.ensure_images(IMAGES, progress=progress)
        images.load_images(
            built,
            loader=lambda archive, ref: cluster.load_image(archive, ref, paths=paths),
            has_image=lambda ref: cluster.has_image(ref, paths=paths),
            progress=progress,
        )
    return {name: image.ref for name, image in built.items()}


def kubeconfig_of(running: cluster.ClusterInfo, folder: Path) -> Path:
    """The cluster's kubeconfig with a context of its owner's choice, which is not the current."""
    document = yaml.safe_load(running.kubeconfig.read_text())
    document["contexts"] = [{"name": CONTEXT, "context": document["contexts"][0]["context"]}]
    document["current-context"] = ""
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


def everything(kubectl: Any) -> set[str]:
    """Kind, name and uid of every object that is no one's child in a namespace of its own."""
    listed = json.loads(kubectl("get", CLUSTER_WIDE, "-o", "json"))["items"]
    return {f"{o['kind']}/{o['metadata']['name']}/{o['metadata']['uid']}" for o in listed}


def governed_call(kubectl: Any, outputs: dict[str, Any]) -> httpx.Response:
    """One model call with a key that the platform minted."""
    secret = json.loads(
        kubectl("-n", "terrace-gateway", "get", "secret", "gateway-secrets", "-o", "json")
    )
    admin_key = base64.b64decode(secret["data"]["admin-key"]).decode()
    # A pod is ready a moment before every node's Service rules know it; until then they refuse.
    patient = httpx.HTTPTransport(retries=7)
    with httpx.Client(transport=patient, trust_env=False, timeout=60) as client:
        key = client.post(
            f"{outputs['admin_url']}/admin/v1/keys",
            headers={"authorization": f"Bearer {admin_key}"},
            json={"team": "theirs", "models": ["sim-small"], "budget_micro_usd": 1_000_000},
        ).raise_for_status()
        answer = client.post(
            f"{outputs['gateway_url']}/v1/chat/completions",
            headers={"authorization": f"Bearer {key.json()['key']}"},
            json={
                "model": "sim-small",
                "messages": [{"role": "user", "content": "count"}],
                "max_tokens": 16,
            },
        )
        spent = client.get(
            f"{outputs['admin_url']}/admin/v1/spend",
            params={"by": "team"},
            headers={"authorization": f"Bearer {admin_key}"},
        ).raise_for_status()
    assert [row["team"] for row in spent.json()["rows"]] == ["theirs"]
    return answer


def test_the_platform_comes_to_somebodys_cluster_and_goes_again(
    running: cluster.ClusterInfo,
    references: dict[str, str],
    kubectl: Any,
    binaries: Path,
    tmp_path: Path,
) -> None:
    kubectl("apply", "-f", "-", text=THEIRS)
    before = everything(kubectl)
    somebody = Somebody(tmp_path, binaries)
    somebody.configure(
        {
            "kubeconfig": str(kubeconfig_of(running, tmp_path)),
            "context": CONTEXT,
            "kubernetesApi": {"cidr": f"{running.node_address}/32", "port": 6443},
            "storage": {
                "node": running.node_name,
                "path": str(running.volumes_root / "existing"),
            },
            "exposure": {"address": running.node_address, "nodePorts": NODE_PORTS},
        },
        references,
    )

    somebody.pulumi("up", "--stack", STACK, "--yes", "--skip-preview")
    outputs = somebody.outputs()
    assert outputs["gateway_url"] == f"http://{running.node_address}:{NODE_PORTS['gateway']}"
    answer = governed_call(kubectl, outputs)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"]

    somebody.pulumi("preview", "--stack", STACK, "--expect-no-changes")

    somebody.pulumi("destroy", "--stack", STACK, "--yes", "--skip-preview")
    assert everything(kubectl) == before
    kept = json.loads(kubectl("-n", "theirs", "get", "configmap", "kept", "-o", "json"))
    assert kept["data"] == {"answer": "42"}
    kubectl("delete", "namespace", "theirs")
