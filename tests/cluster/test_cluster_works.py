"""The cluster does what Kubernetes does, and is shut where it must be."""

import os
import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import trial_pods
import yaml

from terrace_local import cluster
from terrace_local.cluster.network import addresses_on_links
from terrace_local.cluster.preflight import listeners, owner_of
from terrace_local.cluster.scratch_image import write_scratch_image


def eventually(check: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"never became true: {what}"
        time.sleep(0.3)


@pytest.fixture
def pods(
    running: cluster.ClusterInfo, kubectl: Any, paths: cluster.Paths, binaries: Path, tmp_path: Path
) -> None:
    references = trial_pods.load_trial_images(paths, binaries, tmp_path)
    kubectl("apply", "-f", "-", text=trial_pods.trial_manifests(references))
    kubectl("-n", trial_pods.NAMESPACE, "rollout", "status", "deployment/web", "--timeout=90s")
    kubectl(
        "-n", trial_pods.NAMESPACE, "wait", "--for=condition=Ready", "pod/client", "--timeout=90s"
    )


def test_pods_reach_each_other_by_name(pods: None, kubectl: Any) -> None:
    for url in ("http://web.trial.svc.cluster.local", "http://web"):
        eventually(
            lambda url=url: trial_pods.fetch(kubectl, url) == "OK", f"{url} answers in a pod"
        )


def test_the_node_port_answers_on_the_node_address_only(pods: None) -> None:
    def answers(address: str) -> bool:
        try:
            return (
                httpx.get(
                    f"http://{address}:{trial_pods.NODE_PORT}/health", timeout=3, trust_env=False
                ).text
                == "OK"
            )
        except httpx.TransportError:
            return False

    eventually(lambda: answers("10.89.0.1"), "the node port answers")
    others = [
        a for addresses in addresses_on_links().values() for a in addresses if a != "10.89.0.1"
    ]
    assert "127.0.0.1" in others
    assert [a for a in others if answers(a)] == []


def test_a_network_policy_is_enforced_and_lifted(pods: None, kubectl: Any) -> None:
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "deny", "namespace": trial_pods.NAMESPACE},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]},
    }
    eventually(lambda: trial_pods.fetch(kubectl, "http://web") == "OK", "open without a policy")
    kubectl("apply", "-f", "-", text=yaml.safe_dump(policy))
    try:
        eventually(lambda: trial_pods.fetch(kubectl, "http://web") is None, "shut by the policy")
        # Shut for this pod and not for all: the client itself still reaches DNS and the API server.
        assert "No resources" not in kubectl("get", "namespaces")
    finally:
        kubectl("-n", trial_pods.NAMESPACE, "delete", "networkpolicy", "deny")
    eventually(lambda: trial_pods.fetch(kubectl, "http://web") == "OK", "open again")


def test_logs_and_exec_go_through_the_kubelet(pods: None, kubectl: Any) -> None:
    assert "8001" in kubectl("-n", trial_pods.NAMESPACE, "logs", "client")
    assert "v1." in kubectl(
        "-n", trial_pods.NAMESPACE, "exec", "client", "--", "/kubectl", "version", "--client"
    )


def test_nobody_gets_in_without_a_certificate(
    running: cluster.ClusterInfo, paths: cluster.Paths
) -> None:
    context = ssl.create_default_context(cafile=str(paths.pki / "ca.crt"))
    with httpx.Client(verify=context, trust_env=False) as client:
        for url in (
            "https://10.89.0.1:6443/api",
            "https://10.89.0.1:6443/readyz",
            "https://10.89.0.1:10250/pods",
        ):
            assert client.get(url).status_code == 401, url
    with pytest.raises(httpx.TransportError):
        httpx.get("http://10.89.0.1:10255/pods", trust_env=False)
    no_client = ssl.create_default_context(cafile=str(paths.pki / "etcd-ca.crt"))
    with pytest.raises(httpx.TransportError):
        httpx.get("https://127.0.0.1:2379/version", verify=no_client, trust_env=False)


def test_the_kubelet_asks_the_api_server_what_a_client_may(
    running: cluster.ClusterInfo, paths: cluster.Paths
) -> None:
    context = ssl.create_default_context(cafile=str(paths.pki / "ca.crt"))
    context.load_cert_chain(paths.pki / "kube-proxy.crt", paths.pki / "kube-proxy.key")
    answer = httpx.get("https://10.89.0.1:10250/pods", verify=context, trust_env=False)
    assert answer.status_code == 403


def test_everything_listens_on_the_node_or_loopback(
    running: cluster.ClusterInfo, paths: cluster.Paths
) -> None:
    ours = {p.pid for p in cluster.status(paths=paths).parts}
    found = {
        (address, port)
        for port, sockets in listeners().items()
        for address, inode in sockets
        if owner_of(inode) in ours
    }
    assert ("10.89.0.1", 6443) in found
    assert {address for address, _ in found} <= {"10.89.0.1", "127.0.0.1"}


def test_secrets_are_not_readable_in_the_store(
    running: cluster.ClusterInfo, kubectl: Any, paths: cluster.Paths
) -> None:
    marker = "find-me-if-you-can-7f3a"
    kubectl("create", "secret", "generic", f"trial-{os.getpid()}", f"--from-literal=key={marker}")
    kubectl(
        "create", "configmap", f"trial-{os.getpid()}", f"--from-literal=key=plain-{marker[::-1]}"
    )
    store = b"".join(path.read_bytes() for path in paths.etcd.rglob("*") if path.is_file())
    # The second proves that the first would be found were it there.
    assert f"plain-{marker[::-1]}".encode() in store
    assert marker.encode() not in store


def test_keys_are_for_root_only(running: cluster.ClusterInfo, paths: cluster.Paths) -> None:
    secret = [
        *paths.pki.glob("*.key"),
        *paths.pki.glob("*.kubeconfig"),
        paths.pki / "encryption.yaml",
        running.kubeconfig,
    ]
    assert len(secret) > 15
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert stat.S_IMODE(paths.pki.stat().st_mode) == 0o700


def test_up_again_changes_nothing(
    running: cluster.ClusterInfo, binaries: Path, paths: cluster.Paths
) -> None:
    before = {part.name: part.pid for part in cluster.status(paths=paths).parts}
    again = cluster.up(binaries, progress=print, paths=paths)
    assert again.started == ()
    assert again.cluster_identifier == running.cluster_identifier
    assert {part.name: part.pid for part in cluster.status(paths=paths).parts} == before


def test_an_image_archive_that_is_damaged_or_wrong_is_refused(
    running: cluster.ClusterInfo, paths: cluster.Paths, binaries: Path, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    write_scratch_image(binaries / "pause", archive, "terrace.local/right:1")
    with pytest.raises(cluster.ClusterError, match="does not hold"):
        cluster.load_image(archive, "terrace.local/wrong:1", paths=paths)
    archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])
    with pytest.raises(cluster.ClusterError):
        cluster.load_image(archive, "terrace.local/half:1", paths=paths)
    with pytest.raises(cluster.ClusterError, match="no image archive"):
        cluster.load_image(tmp_path / "absent.tar", "terrace.local/absent:1", paths=paths)
    assert not cluster.has_image("terrace.local/half:1", paths=paths)
