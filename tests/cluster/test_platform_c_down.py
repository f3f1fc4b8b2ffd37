"""`terrace down`: says which data goes, keeps it when asked, and leaves the machine as it was."""

import time
from pathlib import Path

import pytest
from machine_snapshot import Snapshot, differences, take_snapshot
from platform_bench import MODEL, Platform, terrace

from terrace_local.cluster.paths import NODE_ADDRESS

pytestmark = pytest.mark.timeout(900)


def test_down_with_its_data_kept_and_up_again_knows_the_keys(
    platform: Platform, own_platform: Snapshot
) -> None:
    del own_platform
    made = platform.new_key(models=[MODEL], budget_micro_usd=1_000_000)
    assert platform.call(made["key"]).status_code == 200
    deadline = time.monotonic() + 60  # the ledger is a moment behind the answer
    while not (spent := platform.key_state(made["key_id"])["settled_micro_usd"]):
        assert time.monotonic() < deadline, "the call was never settled"
        time.sleep(0.1)
    done = terrace("down", "--keep-data")
    assert "stays" in done.stderr
    terrace("endpoints", expect=6)
    terrace("status", expect=6)
    terrace("up")
    platform.wait_ready()
    assert platform.key_state(made["key_id"])["settled_micro_usd"] == spent
    assert platform.call(made["key"]).status_code == 200


def test_down_says_what_goes_and_leaves_nothing(platform: Platform, own_platform: Snapshot) -> None:
    del platform
    began = time.monotonic()
    done = terrace("down", "--yes")
    print(f"\n  down: {time.monotonic() - began:.1f} s")
    for what in ("the ledger and the keys", "spools", "bill", "Pulumi's state"):
        assert what in done.stderr
    assert differences(own_platform, take_snapshot()) == {}
    # With the key of an administrator: Pulumi's Kubernetes provider writes one at every start.
    assert [
        path for path in Path("/tmp").glob("kubeconfig*") if NODE_ADDRESS in path.read_text()
    ] == []
    assert "no Terrace cluster" in terrace("status", expect=6).stdout
    terrace("down", "--yes")
