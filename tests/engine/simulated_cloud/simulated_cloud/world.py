"""The cloud as one provider sees it: its account, its region, and what exists there."""

from dataclasses import dataclass
from typing import Any, Protocol

from .inventory import Inventory, Item
from .values import first


class Place(Protocol):
    """Where a provider works, e.g. an AWS account and region, or a Kubernetes cluster."""

    def scope(self, level: str) -> str:
        """The name of the space in which an id of this level is unique."""
        ...

    def visible(self) -> tuple[str, ...]:
        """All scopes whose items this provider can see."""
        ...


@dataclass(frozen=True)
class World:
    """Read access for checks and computed outputs."""

    inventory: Inventory
    place: Any

    def get(self, id: str, type: str | None = None) -> Item | None:
        """The item with this id or ARN (of this type), or None."""
        for item in self.inventory.items(id=id, type=type, scopes=self.place.visible()):
            return item
        if id.startswith("arn:"):
            return next((item for item in self.all(type) if item.arn == id), None)
        return None

    def all(self, type: str | None = None) -> list[Item]:
        """Every visible item (of this type), oldest first."""
        return self.inventory.items(type=type, scopes=self.place.visible())

    def find(self, type: str, **properties: Any) -> list[Item]:
        """Visible items of `type` whose outputs have exactly these values (camelCase names)."""
        return [
            item
            for item in self.all(type)
            if all(item.outputs.get(key) == value for key, value in properties.items())
        ]

    def using(self, target: Item, type: str, path: str) -> list[Item]:
        """Items of `type` that name `target` (by id, ARN or name) under `path`."""
        names = {target.id, target.arn} - {""}
        return [item for item in self.all(type) if first(item.outputs, path) in names]
