"""The arithmetic of what fits on a node, against values that AWS publishes."""

import pytest

from terrace_components.aws.instance_types import (
    InstanceType,
    Room,
    instance_type,
    larger,
)
from terrace_components.aws.quantities import mebibytes, millicores


def known(name: str) -> InstanceType:
    found = instance_type(name)
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("name", "pods"),  # the VPC CNI's own list, eni-max-pods.txt
    [
        ("m5.large", 29),
        ("m5.xlarge", 58),
        ("c5.4xlarge", 110),  # 234 addresses, and the kubelet's cap
        ("m6g.medium", 8),
        ("t3.medium", 17),
        ("t3.large", 35),
        ("t3a.xlarge", 58),
        ("r6a.16xlarge", 250),  # 737 addresses
    ],
)
def test_pods_are_those_of_the_cni(name: str, pods: int) -> None:
    assert known(name).max_pods(prefixes=False) == pods


@pytest.mark.parametrize(("name", "pods"), [("m5.large", 110), ("m7i.8xlarge", 250)])
def test_prefixes_lift_the_addresses_and_not_the_cap(name: str, pods: int) -> None:
    assert known(name).max_pods(prefixes=True) == pods


@pytest.mark.parametrize(
    ("name", "vcpus", "memory", "arm64"),
    [
        ("c7i.xlarge", 4, 8, False),
        ("m7g.2xlarge", 8, 32, True),
        ("r5dn.4xlarge", 16, 128, False),
        ("m7i-flex.large", 2, 8, False),
        ("t4g.2xlarge", 8, 32, True),
        ("m8g.medium", 1, 4, True),
    ],
)
def test_cpu_and_memory(name: str, vcpus: int, memory: int, arm64: bool) -> None:
    found = known(name)
    assert (found.vcpus, found.memory_gib, found.arm64) == (vcpus, memory, arm64)


@pytest.mark.parametrize(
    "name",
    ["m7i", "m7i.", "m7i.huge", "m7i.medium", "x2idn.32xlarge", "p5.48xlarge", "m7i-flex.24xlarge",
     "t3.4xlarge", "", "m9g.large", "M7I.large"],
)  # fmt: skip
def test_what_is_not_in_the_table_is_not_guessed(name: str) -> None:
    assert instance_type(name) is None


def test_room_is_never_more_than_what_nodes_report() -> None:
    """m5.large with 29 pods reports 1930m and 7244264Ki allocatable (AL2023); the daemons' share
    and the hypervisor's come off before we promise anything."""
    room = known("m5.large").room(prefixes=False)
    assert room.millicores == 1930 - 180
    assert 6000 < room.memory_mib < 7244264 // 1024 - 120


@pytest.mark.parametrize(("vcpus", "reserved"), [(1, 60), (2, 70), (4, 80), (8, 90), (16, 110)])
def test_the_kubelets_share_of_cpu(vcpus: int, reserved: int) -> None:
    one = InstanceType("x.y", vcpus, 64, 4, 15, arm64=False)
    assert one.room(prefixes=False).millicores == vcpus * 1000 - reserved - 180


def test_larger_types_are_of_the_family_and_in_order() -> None:
    names = [one.name for one in larger("t3.large")]
    assert names == ["t3.xlarge", "t3.2xlarge"]
    assert [one.vcpus for one in larger("c7g.xlarge")] == sorted(
        one.vcpus for one in larger("c7g.xlarge")
    )


def test_room_arithmetic() -> None:
    one = Room(1000, 2000, 10)
    assert one.times(3) == Room(3000, 6000, 30)
    assert one.times(3).less(one) == one.times(2)
    assert one.holds(one)
    assert not one.holds(Room(1001, 0, 0))
    assert not one.holds(Room(0, 2001, 0))
    assert not one.holds(Room(0, 0, 11))
    assert Room(1, 9, 5).smallest_with(Room(2, 8, 5)) == Room(1, 8, 5)


@pytest.mark.parametrize(
    ("text", "value"), [("500m", 500), ("2", 2000), ("1.5", 1500), ("0.1", 100), ("1500m", 1500)]
)
def test_quantities_of_cpu(text: str, value: int) -> None:
    assert millicores(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1Gi", 1024), ("512Mi", 512), ("1G", 954), ("1500M", 1431), ("1024Ki", 1), ("1", 1)],
)
def test_quantities_of_memory_round_up(text: str, value: int) -> None:
    assert mebibytes(text) == value


@pytest.mark.parametrize("text", ["", "1Gi", "much", "-1", "1e3"])
def test_not_quantities_of_cpu(text: str) -> None:
    with pytest.raises(ValueError, match="such as 500m"):
        millicores(text)


@pytest.mark.parametrize("text", ["", "1Q", "500m", "-1Gi"])
def test_not_quantities_of_memory(text: str) -> None:
    with pytest.raises(ValueError, match="such as 500Mi"):
        mebibytes(text)
