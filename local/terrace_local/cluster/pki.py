"""The cluster's own certificate authorities, its certificates and kubeconfigs. Keys are mode 0600
and never leave the machine.

etcd has an authority of its own: it gives everything to any client certificate it trusts, so the
node's and the proxies' must not be among them.
"""

import base64
import datetime
import ipaddress
import secrets
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from terrace_local.cluster.files import write_file
from terrace_local.cluster.paths import (
    API_URL,
    CLUSTER_DOMAIN,
    NODE_ADDRESS,
    NODE_NAME,
    SERVICE_API_ADDRESS,
    Paths,
)

__all__ = ["Certificate", "ensure_pki", "kubeconfig_path"]

CA_DAYS = 3650
LEAF_DAYS = 365
RENEW_DAYS = 30


@dataclass(frozen=True)
class Certificate:
    """A leaf: file stem, subject, names, and what it is for."""

    stem: str
    common_name: str
    organization: str | None = None
    names: tuple[str, ...] = ()
    server: bool = False
    client: bool = True
    authority: str = "ca"


LEAVES = (
    Certificate(
        "etcd-server", "etcd", names=("127.0.0.1", "localhost"), server=True, authority="etcd-ca"
    ),
    Certificate("etcd-client", "kube-apiserver", authority="etcd-ca"),
    Certificate(
        "apiserver",
        "kube-apiserver",
        names=(
            NODE_ADDRESS,
            SERVICE_API_ADDRESS,
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            f"kubernetes.default.svc.{CLUSTER_DOMAIN}",
        ),
        server=True,
        client=False,
    ),
    Certificate(
        "loopback-server",
        "terrace:loopback",
        names=("127.0.0.1", "localhost"),
        server=True,
        client=False,
    ),
    Certificate("apiserver-kubelet-client", "terrace:apiserver-kubelet-client"),
    Certificate(
        "kubelet-server",
        f"system:node:{NODE_NAME}",
        "system:nodes",
        (NODE_ADDRESS, NODE_NAME),
        True,
        False,
    ),
    Certificate("kubelet", f"system:node:{NODE_NAME}", "system:nodes"),
    Certificate("admin", "terrace:admin", "system:masters"),
    Certificate("kube-controller-manager", "system:kube-controller-manager"),
    Certificate("kube-scheduler", "system:kube-scheduler"),
    Certificate("kube-proxy", "system:kube-proxy"),
    Certificate("kube-router", "terrace:kube-router"),
)
KUBECONFIGS = (
    "admin",
    "kubelet",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kube-router",
)


def ensure_pki(paths: Paths) -> None:
    """Have every key, certificate and kubeconfig in place.

    Makes only what is absent, damaged, foreign or ends within 30 days.
    """
    paths.pki.mkdir(parents=True, exist_ok=True, mode=0o700)
    paths.pki.chmod(0o700)
    authorities = {name: _authority(paths.pki, name) for name in ("ca", "etcd-ca")}
    for leaf in LEAVES:
        authority, key = authorities[leaf.authority]
        if not _is_good(paths.pki, leaf, authority):
            _issue(paths.pki, leaf, authority, key)
    _service_account_key(paths.pki)
    _encryption_config(paths.pki)
    authority_pem = (paths.pki / "ca.crt").read_bytes()
    for name in KUBECONFIGS:
        target = kubeconfig_path(paths, name)
        write_file(target, _kubeconfig(paths.pki, name, authority_pem), mode=0o600)


def kubeconfig_path(paths: Paths, name: str) -> Path:
    return paths.kubeconfig if name == "admin" else paths.pki / f"{name}.kubeconfig"


def _authority(pki: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((pki / f"{name}.crt").read_bytes())
        key = serialization.load_pem_private_key((pki / f"{name}.key").read_bytes(), None)
        if (
            isinstance(key, ec.EllipticCurvePrivateKey)
            and _ends_in(certificate) > RENEW_DAYS
            and (key.public_key() == certificate.public_key())
        ):
            return certificate, key
    except (FileNotFoundError, ValueError):
        pass
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"terrace-local-{name}")])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(subject, subject, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_key(pki / f"{name}.key", key)
    write_file(pki / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))
    return certificate, key


def _is_good(pki: Path, leaf: Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate((pki / f"{leaf.stem}.crt").read_bytes())
        key = serialization.load_pem_private_key((pki / f"{leaf.stem}.key").read_bytes(), None)
        certificate.verify_directly_issued_by(authority)
    except (FileNotFoundError, ValueError, TypeError, InvalidSignature):
        return False
    return (
        key.public_key() == certificate.public_key()
        and _ends_in(certificate) > RENEW_DAYS
        and certificate.subject == _subject(leaf)
        and _names(certificate) == set(leaf.names)
    )


def _issue(
    pki: Path,
    leaf: Certificate,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH] * leaf.server + [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ] * leaf.client
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=False,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(_subject(leaf), authority.subject, key.public_key(), LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()),
            critical=False,
        )
    )
    if leaf.names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(n) for n in leaf.names]), critical=False
        )
    _write_key(pki / f"{leaf.stem}.key", key)
    certificate = builder.sign(authority_key, hashes.SHA256())
    write_file(pki / f"{leaf.stem}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _service_account_key(pki: Path) -> None:
    """Every pod's token is signed with it, so it is kept as long as the cluster's data is."""
    try:
        serialization.load_pem_private_key((pki / "service-account.key").read_bytes(), None)
    except (FileNotFoundError, ValueError):
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        _write_key(pki / "service-account.key", key)


def _encryption_config(pki: Path) -> None:
    """Secrets are encrypted in etcd.

    A new key would make the old ones unreadable, so it is made once.
    """
    target = pki / "encryption.yaml"
    if target.exists():
        return
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    config = {
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "EncryptionConfiguration",
        "resources": [
            {
                "resources": ["secrets"],
                "providers": [
                    {"secretbox": {"keys": [{"name": "key1", "secret": key}]}},
                    {"identity": {}},
                ],
            }
        ],
    }
    write_file(target, yaml.safe_dump(config), mode=0o600)


def _kubeconfig(pki: Path, stem: str, authority: bytes) -> str:
    def encode(data: bytes) -> str:
        return base64.b64encode(data).decode()

    user = {
        "client-certificate-data": encode((pki / f"{stem}.crt").read_bytes()),
        "client-key-data": encode((pki / f"{stem}.key").read_bytes()),
    }
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": NODE_NAME,
                "cluster": {"server": API_URL, "certificate-authority-data": encode(authority)},
            }
        ],
        "users": [{"name": stem, "user": user}],
        "contexts": [{"name": NODE_NAME, "context": {"cluster": NODE_NAME, "user": stem}}],
        "current-context": NODE_NAME,
    }
    return yaml.safe_dump(config)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A clock set back a little must not make a new certificate invalid.
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _subject(leaf: Certificate) -> x509.Name:
    attributes = (
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.organization)]
        if leaf.organization
        else []
    )
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(n.value) for n in names}


def _ends_in(certificate: x509.Certificate) -> int:
    return (certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)).days


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_file(path, pem, mode=0o600)
