"""The simulated cloud, from the outside: what exists, what was called, what shall fail."""

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1] / "simulated_cloud"
sys.path.insert(0, str(PACKAGE))

from simulated_cloud import faults  # noqa: E402  it is on the path only now
from simulated_cloud.inventory import Call, Inventory, Item  # noqa: E402
from simulated_cloud.seed import add_item  # noqa: E402

CHANGES = ("create", "update", "delete")


@dataclass(frozen=True)
class Cloud:
    """One account on disk. Stacks share it when their engines do."""

    directory: Path

    @property
    def package(self) -> Path:
        """The folder to import ``simulated_cloud`` from."""
        return PACKAGE

    @property
    def inventory(self) -> Inventory:
        return Inventory(self.directory)

    def items(self, kind: str = "") -> list[Item]:
        """What exists, of types that contain ``kind``. What was in a cluster goes with it; what
        only waits for the end of its deletion window (a KMS key) is gone."""
        inventory = self.inventory
        waiting = {(item.scope, item.type, item.id) for item in inventory.pending()}
        servers = {
            str(cluster["endpoint"]) for cluster in inventory.items(type="aws:eks/cluster:Cluster")
        }
        return [
            item
            for item in inventory.items()
            if kind in item.type
            and (item.scope, item.type, item.id) not in waiting
            and not _is_of_a_gone_cluster(item.scope, servers)
        ]

    def add(self, kind: str, id: str, inputs: Mapping[str, Any]) -> None:
        """Something that is in the account already, and belongs to somebody else; with what comes
        with it (a VPC's default security group)."""
        before = {(item.type, item.id) for item in self.items()}
        add_item(self.inventory, kind, id, dict(inputs))
        added = {(item.type, item.id) for item in self.items()} - before
        with self._seeded.open("a") as file:
            file.writelines(f"{kind} {id}\n" for kind, id in sorted(added))

    def of_others(self) -> set[tuple[str, str]]:
        """(type, id) of what was added."""
        lines = self._seeded.read_text().splitlines() if self._seeded.exists() else []
        return {(kind, id) for kind, _, id in (line.partition(" ") for line in lines)}

    @property
    def _seeded(self) -> Path:
        return self.directory / "of-others.txt"

    def counts(self) -> Counter[str]:
        """How many of each type exist."""
        return Counter(item.type for item in self.items())

    def must_be_empty(self) -> None:
        """Nothing of ours is left, and nothing of others' is gone."""
        there = {(item.type, item.id): item for item in self.items()}
        others = self.of_others()
        left = "\n".join(
            f"{item.type} {item.name} {item.id}" for key, item in there.items() if key not in others
        )
        assert not left, f"left in the cloud:\n{left}"
        assert others <= set(there), f"gone, and not ours: {others - set(there)}"

    # --- the books ---

    def calls(self, operation: str = "", kind: str = "") -> list[Call]:
        """The cloud's own log of calls, oldest first."""
        return [
            call
            for call in self.inventory.calls()
            if operation in ("", call.operation) and kind in call.type
        ]

    def changes(self) -> list[Call]:
        """The calls that changed something or were meant to."""
        return [call for call in self.inventory.calls() if call.operation in CHANGES]

    def order_of_deletes(self) -> list[str]:
        """Types in the order in which things were deleted."""
        return [call.type for call in self.calls("delete") if call.outcome == "done"]

    # --- faults ---

    def fail(
        self, kind: str = "error", *, on: str = "*", operation: str = "create", **options: Any
    ) -> None:
        """Order a failure; kinds and options as in ``simulated_cloud.faults``."""
        fault = faults.Fault(kind=kind, operation=operation, type=on, **options)
        faults.order(self.inventory, fault)

    def heal(self) -> None:
        """Withdraw all failures that are still to come."""
        faults.clear(self.inventory)

    def remove(self, item: Item) -> None:
        """Somebody deletes a thing by hand."""
        self.inventory.remove(item)


def _is_of_a_gone_cluster(scope: str, servers: set[str]) -> bool:
    _, slash, server = scope.partition("kubernetes/")
    return bool(slash) and ".eks." in server and server not in servers
