"""The certificate authorities, and what is made anew when."""

import base64
import datetime
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from terrace_local.cluster import pki
from terrace_local.cluster.paths import Paths

Load = Callable[[str], x509.Certificate]


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    made = Paths(tmp_path / "state", tmp_path / "run")
    made.state.mkdir()
    pki.ensure_pki(made)
    return made


@pytest.fixture
def load(paths: Paths) -> Load:
    return lambda stem: x509.load_pem_x509_certificate((paths.pki / f"{stem}.crt").read_bytes())


def snapshot(paths: Paths) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in paths.pki.iterdir()}


def test_a_second_call_changes_nothing(paths: Paths) -> None:
    before = snapshot(paths)
    pki.ensure_pki(paths)
    assert snapshot(paths) == before


def test_keys_and_kubeconfigs_are_mode_600(paths: Paths) -> None:
    for path in [*paths.pki.glob("*.key"), *paths.pki.glob("*.kubeconfig"), paths.kubeconfig]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_every_leaf_is_signed_by_its_own_authority(load: Load) -> None:
    authorities = {name: load(name) for name in ("ca", "etcd-ca")}
    for leaf in pki.LEAVES:
        certificate = load(leaf.stem)
        certificate.verify_directly_issued_by(
            authorities.pop(leaf.authority, None) or load(leaf.authority)
        )
        other = load("ca" if leaf.authority == "etcd-ca" else "etcd-ca")
        with pytest.raises(ValueError, match="issuer"):
            certificate.verify_directly_issued_by(other)


def test_the_node_and_the_proxies_cannot_read_the_store() -> None:
    assert {leaf.stem for leaf in pki.LEAVES if leaf.authority == "etcd-ca"} == {
        "etcd-server",
        "etcd-client",
    }


def test_only_the_administrator_is_a_master() -> None:
    assert [leaf.stem for leaf in pki.LEAVES if leaf.organization == "system:masters"] == ["admin"]


def test_servers_are_no_clients_but_for_the_member_that_talks_to_itself(load: Load) -> None:
    for leaf in pki.LEAVES:
        usage = load(leaf.stem).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        assert (ExtendedKeyUsageOID.SERVER_AUTH in usage) == leaf.server
        assert (ExtendedKeyUsageOID.CLIENT_AUTH in usage) == leaf.client
    assert [leaf.stem for leaf in pki.LEAVES if leaf.server and leaf.client] == ["etcd-server"]


def test_the_kubeconfig_holds_the_administrators_certificate(paths: Paths, load: Load) -> None:
    config = yaml.safe_load(paths.kubeconfig.read_text())
    assert config["clusters"][0]["cluster"]["server"] == "https://10.89.0.1:6443"
    held = x509.load_pem_x509_certificate(
        base64.b64decode(config["users"][0]["user"]["client-certificate-data"])
    )
    assert held == load("admin")


@pytest.mark.parametrize("damage", ["truncated", "absent", "foreign key"])
def test_a_damaged_leaf_is_issued_again_and_the_others_stay(paths: Paths, damage: str) -> None:
    before = snapshot(paths)
    key = paths.pki / "kubelet.key"
    if damage == "truncated":
        key.write_bytes(before["kubelet.key"][:40])
    elif damage == "absent":
        key.unlink()
    else:
        key.write_bytes(before["admin.key"])
    pki.ensure_pki(paths)
    changed = {name for name, data in snapshot(paths).items() if data != before[name]}
    assert changed == {"kubelet.key", "kubelet.crt", "kubelet.kubeconfig"}


def test_a_leaf_that_ends_soon_is_renewed(
    paths: Paths, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pki, "LEAF_DAYS", pki.RENEW_DAYS)
    authority = load("ca")
    key = serialization.load_pem_private_key((paths.pki / "ca.key").read_bytes(), None)
    [scheduler] = [leaf for leaf in pki.LEAVES if leaf.stem == "kube-scheduler"]
    pki._issue(paths.pki, scheduler, authority, key)
    monkeypatch.undo()
    before = load("admin").serial_number
    pki.ensure_pki(paths)
    left = load("kube-scheduler").not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert left > datetime.timedelta(days=300)
    assert load("admin").serial_number == before


def test_a_new_authority_takes_every_leaf_along(paths: Paths, load: Load) -> None:
    (paths.pki / "ca.key").unlink()
    pki.ensure_pki(paths)
    for leaf in pki.LEAVES:
        load(leaf.stem).verify_directly_issued_by(load(leaf.authority))


def test_the_key_that_encrypts_secrets_is_made_once(paths: Paths) -> None:
    before = (paths.pki / "encryption.yaml").read_text()
    (paths.pki / "ca.key").unlink()
    pki.ensure_pki(paths)
    assert (paths.pki / "encryption.yaml").read_text() == before
    [provider, _] = yaml.safe_load(before)["resources"][0]["providers"]
    assert len(base64.b64decode(provider["secretbox"]["keys"][0]["secret"])) == 32
