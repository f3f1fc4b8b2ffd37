"""Many processes share one inventory, and one that is killed leaves it whole."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from account import Account

from simulated_cloud import faults
from simulated_cloud.inventory import Inventory

HERE = Path(__file__).parent
VPC = "aws:ec2/vpc:Vpc"
MAKER = """
import sys
sys.path[:0] = sys.argv[2:4]
from pathlib import Path
from account import Account
account = Account(Path(sys.argv[1]))
print("ready", flush=True)
for index in range(int(sys.argv[4])):
    account.create("aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16"}, f"vpc-{index}")
"""


def maker(directory: Path, count: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", MAKER, str(directory), str(HERE), str(HERE.parent), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_providers_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    workers = [maker(tmp_path, 15) for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=120)
        assert worker.returncode == 0
    inventory = Inventory(tmp_path)
    calls = inventory.calls()
    assert len(inventory.items(type=VPC)) == len(calls) == 30
    assert len({call.process for call in calls}) == 2
    assert len({call.id for call in calls}) == 30


def test_a_name_is_given_once_however_many_ask(tmp_path: Path) -> None:
    script = MAKER.replace(
        '"aws:ec2/vpc:Vpc", {"cidrBlock": "10.0.0.0/16"}, f"vpc-{index}"',
        '"aws:s3/bucket:Bucket", {"bucket": f"b-{index}00"}',
    )
    script = (
        script.replace("    account.create", "    try: account.create").rstrip()
        + "\n    except Exception: pass\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path), str(HERE), str(HERE.parent), "10"]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for worker in workers:
        worker.communicate(timeout=120)
    outcomes = [call.outcome for call in Inventory(tmp_path).calls()]
    assert outcomes.count("done") == 10
    assert outcomes.count("BucketAlreadyOwnedByYou") == 10


def test_a_provider_killed_in_the_middle_of_a_create_leaves_the_inventory_readable(
    tmp_path: Path,
) -> None:
    faults.order(Inventory(tmp_path), faults.Fault("latency", seconds=60))
    worker = maker(tmp_path, 5)
    deadline = time.monotonic() + 60
    inventory = Inventory(tmp_path)
    while not inventory.items(type=VPC) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(worker.pid, signal.SIGKILL)
    worker.communicate(timeout=60)
    inventory = Inventory(tmp_path)
    assert len(inventory.items(type=VPC)) == 1  # made, though nobody was told
    assert sqlite3.connect(inventory.path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
    Account(tmp_path).create(VPC, {"cidrBlock": "10.0.0.0/16"}, "after")
    assert len(Inventory(tmp_path).items(type=VPC)) == 2


def test_the_books_cannot_be_shortened_by_a_delete(tmp_path: Path) -> None:
    account = Account(tmp_path)
    id = account.create(VPC, {"cidrBlock": "10.0.0.0/16"})["id"]
    account.delete(VPC, id)
    assert [(call.operation, call.id) for call in account.inventory.calls()] == [
        ("create", id),
        ("delete", id),
    ]


def run(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "SIMULATED_CLOUD_DIR": str(directory),
        "PYTHONPATH": str(HERE.parent),
    }
    return subprocess.run(
        [sys.executable, "-m", "simulated_cloud", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_the_commands_for_people(tmp_path: Path) -> None:
    assert run(tmp_path, "add", VPC, "vpc-1", '{"cidrBlock": "10.0.0.0/16"}').returncode == 0
    assert "vpc-1" in run(tmp_path, "inventory").stdout
    assert run(tmp_path, "fault", "throttle", "--times", "2").returncode == 0
    assert "2 more" in run(tmp_path, "fault", "--list").stdout
    assert run(tmp_path, "add", VPC, "vpc-2", '{"cidr": "x"}').returncode == 2
    assert run(tmp_path, "remove", "nothing").returncode == 2
    assert run(tmp_path, "reset").returncode == 0
    assert run(tmp_path, "inventory").stdout.strip() == "0 items"
