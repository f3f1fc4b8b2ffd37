"""The API server is asked over TLS with the kubeconfig's certificates; the TLS is real."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from terrace_cli.errors import CliError, NotRunningError
from terrace_cli.kubernetes_api import KubernetesApi


def certificate(name: str, issuer: Any = None) -> SimpleNamespace:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
    )
    if issuer is None:
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(usage, critical=True)
    made = builder.sign(issuer.key if issuer else key, hashes.SHA256())
    return SimpleNamespace(
        key=key,
        subject=subject,
        pem=made.public_bytes(serialization.Encoding.PEM),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[SimpleNamespace]:
    """A server that demands a client certificate of its CA; `answers` maps paths to documents."""
    authority = certificate("ca")
    server, client = certificate("server", authority), certificate("client", authority)
    state = SimpleNamespace(answers={}, kubeconfig=tmp_path / "kubeconfig")

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            status, document = state.answers.get(self.path, (404, {"message": "not found"}))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

    for name, content in (("s.pem", server.pem + server.key_pem), ("ca.pem", authority.pem)):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "s.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    http = HTTPServer(("127.0.0.1", 0), Handler)
    http.socket = context.wrap_socket(http.socket, server_side=True)
    threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()

    def encoded(pem: bytes) -> str:
        return base64.b64encode(pem).decode()

    cluster = {
        "server": f"https://127.0.0.1:{http.server_port}",
        "certificate-authority-data": encoded(authority.pem),
    }
    user = {
        "client-certificate-data": encoded(client.pem),
        "client-key-data": encoded(client.key_pem),
    }
    state.document = {"clusters": [{"cluster": cluster}], "users": [{"user": user}]}
    state.kubeconfig.write_text(yaml.safe_dump(state.document))
    yield state
    http.shutdown()
    http.server_close()


def test_a_secret_is_read_with_the_client_certificate(api_server: SimpleNamespace) -> None:
    value = base64.b64encode(b"tadm-x").decode()
    path = "/api/v1/namespaces/n/secrets/s"
    api_server.answers[path] = (200, {"data": {"admin-key": value}})
    with KubernetesApi(api_server.kubeconfig) as kubernetes:
        assert kubernetes.secret_value("n", "s", "admin-key") == "tadm-x"
        with pytest.raises(CliError, match="no key 'other'"):
            kubernetes.secret_value("n", "s", "other")
        with pytest.raises(CliError, match="not found"):
            kubernetes.secret_value("n", "gone", "x")


@pytest.mark.parametrize("code", [429, 500, 503, 504])
def test_trouble_of_the_server_is_told_from_a_refusal(
    api_server: SimpleNamespace, code: int
) -> None:
    api_server.answers["/x"] = (code, {"message": "etcdserver: request timed out"})
    api_server.answers["/y"] = (403, {"message": "forbidden"})
    with KubernetesApi(api_server.kubeconfig) as kubernetes:
        with pytest.raises(NotRunningError, match="trouble with /x: etcdserver"):
            kubernetes.get("/x")
        with pytest.raises(CliError, match="refused /y: forbidden") as refused:
            kubernetes.get("/y")
    assert not isinstance(refused.value, NotRunningError)


def test_no_key_is_left_on_disk(api_server: SimpleNamespace, tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("terrace-client-*"))
    with KubernetesApi(api_server.kubeconfig):
        pass
    assert set(Path("/tmp").glob("terrace-client-*")) == before


def test_workloads_and_their_troubles(api_server: SimpleNamespace) -> None:
    def item(namespace: str, name: str, wanted: int, ready: int) -> dict[str, Any]:
        status = {"readyReplicas": ready, "updatedReplicas": ready} if ready else {}
        metadata = {"namespace": namespace, "name": name}
        return {"metadata": metadata, "spec": {"replicas": wanted}, "status": status}

    deployments = [item("b", "gateway", 2, 1), item("elsewhere", "x", 1, 0)]
    api_server.answers["/apis/apps/v1/deployments"] = (200, {"items": deployments})
    api_server.answers["/apis/apps/v1/statefulsets"] = (200, {"items": [item("a", "pg", 1, 1)]})
    statuses = [
        {"name": "ok", "ready": True, "state": {"running": {}}},
        {"name": "slow", "ready": False, "state": {"running": {}}},
        {"name": "loop", "ready": False, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        {"name": "new", "ready": False, "state": {"waiting": {"reason": "PodInitializing"}}},
    ]
    condition = {"type": "PodScheduled", "status": "False", "message": "no memory"}
    pods = [
        {"metadata": {"namespace": "a", "name": "p"}, "status": {"containerStatuses": statuses}},
        {"metadata": {"namespace": "a", "name": "q"}, "status": {"conditions": [condition]}},
        {"metadata": {"namespace": "a", "name": "job"}, "status": {"phase": "Succeeded"}},
    ]
    api_server.answers["/api/v1/namespaces/a/pods"] = (200, {"items": pods})
    with KubernetesApi(api_server.kubeconfig) as kubernetes:
        found = kubernetes.workloads(("a", "b"))
        troubles = kubernetes.pod_troubles(("a",))
    assert [(load.name, load.is_ready) for load in found] == [("pg", True), ("gateway", False)]
    assert troubles == [
        "container slow of a/p runs but is not ready",
        "container loop of a/p waits: CrashLoopBackOff",
        "pod a/q is not scheduled: no memory",
    ]


@pytest.mark.parametrize(
    ("generation", "status", "rolling"),
    [
        (2, {"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 2}, False),
        (3, {"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 2}, True),
        (2, {"observedGeneration": 2, "readyReplicas": 2, "updatedReplicas": 1}, True),
        (2, {"observedGeneration": 2, "readyReplicas": 2}, True),
    ],
)
def test_a_roll_is_over_when_the_newest_generation_is_everywhere(
    api_server: SimpleNamespace, generation: int, status: dict[str, int], rolling: bool
) -> None:
    metadata = {"namespace": "a", "name": "gateway", "generation": generation}
    item = {"metadata": metadata, "spec": {"replicas": 2}, "status": status}
    api_server.answers["/apis/apps/v1/deployments"] = (200, {"items": []})
    api_server.answers["/apis/apps/v1/statefulsets"] = (200, {"items": [item]})
    with KubernetesApi(api_server.kubeconfig) as kubernetes:
        [found] = kubernetes.workloads(("a",))
    assert (found.rolling, found.is_ready) == (rolling, not rolling)


def test_a_server_of_another_authority_is_not_trusted(api_server: SimpleNamespace) -> None:
    other = base64.b64encode(certificate("other").pem).decode()
    api_server.document["clusters"][0]["cluster"]["certificate-authority-data"] = other
    api_server.kubeconfig.write_text(yaml.safe_dump(api_server.document))
    with KubernetesApi(api_server.kubeconfig) as kubernetes, pytest.raises(NotRunningError):
        kubernetes.get("/version")


@pytest.mark.parametrize("text", ["", "{", "clusters: []", "clusters: 3", "users: [a]"])
def test_a_damaged_kubeconfig_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(NotRunningError, match=str(path)):
        KubernetesApi(path)


def test_without_a_cluster_it_says_how_to_start_one(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match="terrace up"):
        KubernetesApi(tmp_path / "none")
