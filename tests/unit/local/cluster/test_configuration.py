"""The files that the parts read, and the flags that shut them."""

import json
import tomllib
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from terrace_local.cluster import addons, cgroups, mounts
from terrace_local.cluster.configuration import upstream_resolvers, write_configuration
from terrace_local.cluster.files import read_json, write_file, write_json
from terrace_local.cluster.parts import PARTS, PORTS, STOP_ORDER, parts
from terrace_local.cluster.paths import Paths


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "state", tmp_path / "run")


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nameserver 192.0.2.1\n", ["192.0.2.1"]),
        ("nameserver 127.0.0.53\noptions edns0\n", []),
        ("nameserver 127.0.0.53\nnameserver 192.0.2.1\n", ["192.0.2.1"]),
        ("nameserver ::1\nnameserver fe80::1%eth0\nnameserver 2001:db8::1\n", []),
        ("# nameserver 192.0.2.9\n;nameserver 192.0.2.8\nnameserver\nnameserver 0.0.0.0\n", []),
        (
            "".join(f"nameserver 192.0.2.{n}\n" for n in (1, 2, 3, 4)),
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
        ),
        ("", []),
    ],
)
def test_resolvers_that_a_pod_can_reach(tmp_path: Path, text: str, expected: list[str]) -> None:
    assert upstream_resolvers([write(tmp_path / "resolv.conf", text)]) == expected


def test_behind_a_stub_resolver_its_upstreams_are_taken(tmp_path: Path) -> None:
    stub = write(tmp_path / "stub", "nameserver 127.0.0.53\n")
    real = write(tmp_path / "real", "nameserver 192.0.2.7\n")
    assert upstream_resolvers([tmp_path / "absent", stub, real]) == ["192.0.2.7"]


def test_dns_forwards_only_to_what_there_is() -> None:
    assert "forward" not in addons.corefile([])
    assert "forward . 192.0.2.1 192.0.2.2 {" in addons.corefile(["192.0.2.1", "192.0.2.2"])
    for text in (addons.corefile([]), addons.corefile(["192.0.2.1"])):
        assert text.count("{") == text.count("}")


def test_the_kubelet_lets_nobody_in_unasked(paths: Paths) -> None:
    write_configuration(
        paths, runc=Path("/usr/sbin/runc"), pause_ref="terrace.local/pause:1", resolvers=[]
    )
    kubelet = yaml.safe_load((paths.config / "kubelet.yaml").read_text())
    assert kubelet["authentication"]["anonymous"]["enabled"] is False
    assert kubelet["authorization"] == {"mode": "Webhook"}
    assert kubelet["readOnlyPort"] == 0
    assert kubelet["address"] == "10.89.0.1"
    containerd = tomllib.loads((paths.config / "containerd.toml").read_text())
    assert containerd["version"] == 3
    assert containerd["root"] == str(paths.containerd)
    images = containerd["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"]["sandbox"] == "terrace.local/pause:1"
    network = json.loads((paths.cni / "conf" / "10-terrace.conflist").read_text())
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.88.0.0/16"}]]


def test_the_api_server_lets_nobody_in_unasked(paths: Paths) -> None:
    argv = parts(paths, Path("/tools"))["kube-apiserver"].argv
    assert "--anonymous-auth=false" in argv
    assert "--authorization-mode=Node,RBAC" in argv
    assert "--enable-admission-plugins=NodeRestriction" in argv


def test_every_part_is_started_and_stopped_once(paths: Paths) -> None:
    assert tuple(parts(paths, Path("/tools"))) == PARTS
    assert sorted(name for group in STOP_ORDER for name in group) == sorted(PARTS)
    assert {part for _, _, part in PORTS} <= set(PARTS)
    assert {address for address, _, _ in PORTS} == {"10.89.0.1", "127.0.0.1"}


def test_nothing_secret_is_on_a_command_line(paths: Paths) -> None:
    for process in parts(paths, Path("/tools")).values():
        assert not [word for word in process.argv if "PRIVATE KEY" in word or "token=" in word]


V1 = """31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
37 31 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
38 31 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"


def test_cgroup_layouts_are_told_apart(tmp_path: Path) -> None:
    hybrid = cgroups.hierarchies(write(tmp_path / "hybrid", V1))
    assert hybrid == {
        "cpu,cpuacct": Path("/sys/fs/cgroup/cpu,cpuacct"),
        "name=systemd": Path("/sys/fs/cgroup/systemd"),
    }
    assert cgroups.hierarchies(write(tmp_path / "v2", V2)) == {"": Path("/sys/fs/cgroup")}


def test_mounts_are_undone_from_the_top_and_only_below_our_directories(tmp_path: Path) -> None:
    lines = [
        "1 0 8:1 / / rw - ext4 /dev/vda rw",
        "2 1 8:1 / /var/lib/terrace rw - ext4 /dev/vdb rw",
        "3 2 0:9 / /var/lib/terrace/a rw - tmpfs tmpfs rw",
        "4 3 0:9 / /var/lib/terrace/a/b\\040c rw - tmpfs tmpfs rw",
        "5 3 0:9 / /var/lib/terrace/a rw - tmpfs tmpfs rw",
        "6 1 0:9 / /var/lib/terrace-tests/a rw - tmpfs tmpfs rw",
        "7 1 0:9 / /srv rw - tmpfs tmpfs rw",
    ]
    found = mounts.mounts_below(
        [Path("/var/lib/terrace")], write(tmp_path / "mountinfo", "\n".join(lines))
    )
    assert found == [
        Path("/var/lib/terrace/a"),
        Path("/var/lib/terrace/a/b c"),
        Path("/var/lib/terrace/a"),
    ]


@given(st.binary(max_size=200), st.sampled_from([0o600, 0o644]))
def test_a_file_is_written_whole_with_its_mode_or_left_alone(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, mode: int
) -> None:
    path = tmp_path_factory.mktemp("files") / "deep" / "file"
    assert write_file(path, data, mode=mode) is True
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 == mode
    before = path.stat()
    assert write_file(path, data, mode=mode) is False
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


@given(st.binary(max_size=60))
def test_garbage_is_no_json(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("json") / "x.json"
    path.write_bytes(data)
    assert read_json(path) is None or isinstance(read_json(path), dict)
    write_json(path, {"a": 1})
    assert read_json(path) == {"a": 1}
