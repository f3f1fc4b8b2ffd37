"""Kubeconfigs that the Kubernetes provider leaves: those of this cluster go, nothing else does."""

import os
from pathlib import Path

import pytest

from terrace_local.cluster.paths import API_URL, NODE_NAME
from terrace_local.cluster.provider_files import remove_kubeconfigs

OURS = f"""apiVersion: v1
clusters:
- cluster:
    server: {API_URL}
  name: {NODE_NAME}
current-context: {NODE_NAME}
users:
- name: admin
  user:
    client-key-data: X
"""


def test_those_of_this_cluster_go(tmp_path: Path) -> None:
    files = [tmp_path / "kubeconfig1", tmp_path / "kubeconfig1489106139"]
    files[0].write_text(OURS)
    files[1].write_text(OURS.replace("current-context: terrace-local", 'current-context: ""'))
    assert remove_kubeconfigs([tmp_path]) == files
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kubeconfig2", OURS.replace(API_URL, f"{API_URL}3")),
        ("kubeconfig2", OURS.replace(f"  name: {NODE_NAME}", "  name: mine")),
        ("kubeconfig", OURS),
        ("kubeconfig-2", OURS),
        ("kubeconfig2.yaml", OURS),
        ("kubeconfig2", ""),
    ],
)
def test_anybody_elses_stays(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert remove_kubeconfigs([tmp_path]) == []
    assert (tmp_path / name).read_text() == text


def test_what_only_looks_like_a_file_is_left_alone(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text(OURS)
    (tmp_path / "kubeconfig1").symlink_to(elsewhere)
    (tmp_path / "kubeconfig2").mkdir()
    os.mkfifo(tmp_path / "kubeconfig3")
    (tmp_path / "kubeconfig4").write_bytes(b"\xff\xfe")
    assert remove_kubeconfigs([tmp_path, tmp_path / "absent"]) == []
    assert len(list(tmp_path.iterdir())) == 5
    assert elsewhere.read_text() == OURS


def test_they_are_looked_for_where_programs_put_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Path] = []
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(Path, "glob", lambda self, _: looked.append(self) or [])
    remove_kubeconfigs()
    assert set(looked) == {tmp_path, Path("/tmp")}
