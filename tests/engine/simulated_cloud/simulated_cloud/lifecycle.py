"""Create, update, delete and read of items, with the checks that need the rest of the cloud."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .inventory import Inventory, Item
from .models import CloudError, Link, PartialError, ResourceModel
from .naming import named
from .schema_check import check_schema
from .sdk import Kind, ResourceSchema, Sdk
from .values import UNKNOWN, Properties, has_unknown, known
from .world import World


class Lifecycle:
    """Every change is one transaction: what was checked is still true when it is written."""

    def __init__(
        self, inventory: Inventory, sdk: Sdk, model: Callable[[str], ResourceModel]
    ) -> None:
        self._inventory = inventory
        self._sdk = sdk
        self._model = model

    def preview(
        self,
        token: str,
        inputs: Properties,
        old: Properties | None = None,
        old_inputs: Properties | None = None,
    ) -> Properties:
        """Outputs as far as they are known before the change: all computed ones are unknown before
        a create."""
        model, schema = self._model(token), self._schema(token)
        if old is None:
            unset = [
                name
                for name in schema.outputs
                if inputs.get(name) is None and name not in model.defaults
            ]
            return {
                **dict.fromkeys(unset, UNKNOWN),
                **model.defaults,
                **_with_computed(model, inputs, {}),
                **_echoes(model, schema, inputs),
            }
        dropped = (old_inputs or {}).keys() - inputs.keys()
        kept = {name: value for name, value in old.items() if name not in dropped}
        return {
            **kept,
            **dict.fromkeys(model.unknown_on_update, UNKNOWN),
            **_with_computed(model, inputs, old),
            **_echoes(model, schema, inputs),
        }

    def adopt(self, token: str, id: str, inputs: Properties, world: World) -> Item:
        """Makes one that has an id already, with every check. Raises `ValueError` when it is
        refused."""
        problems = list(check_schema(inputs, self._schema(token))) or list(
            self._model(token).check(inputs, world)
        )
        if problems:
            raise ValueError(
                "; ".join(f"{problem.property}: {problem.reason}" for problem in problems)
            )
        try:
            item = self._make(token, id, inputs, world, id=id)
            self._model(token).adopted(item, world)
        except CloudError as error:
            raise ValueError(str(error)) from error
        return item

    def create(self, token: str, name: str, inputs: Properties, world: World) -> Item:
        """Makes one. Raises `CloudError` when the cloud refuses."""
        return self._make(token, name, inputs, world, id=None)

    def _make(
        self, token: str, name: str, inputs: Properties, world: World, *, id: str | None
    ) -> Item:
        model = self._model(token)
        if has_unknown(inputs):
            raise CloudError("InvalidRequest", "inputs are unknown outside a preview")
        with self._inventory.transaction():
            full = named(model, inputs)
            self._refuse_dangling_links(model, full, world)
            model.refuse(full, world, None)
            id = id or model.identify(full, name, world)
            scope = world.place.scope(model.level)
            item = Item(token, scope, id, name, inputs, self._outputs(token, full, id, world))
            self._refuse_duplicates(model, item, world)
            self._inventory.put(item)
            model.created(item, world)
        return item

    def update(self, token: str, id: str, inputs: Properties, world: World) -> Item:
        """Changes one in place. Raises `CloudError`, e.g. when it is gone."""
        model = self._model(token)
        with self._inventory.transaction():
            found = self._find(token, id, world)
            if found is None:
                raise CloudError("ResourceNotFoundException", f"{id} does not exist")
            full = named(
                model, inputs, found[model.auto_name.property] if model.auto_name else None
            )
            self._refuse_dangling_links(model, full, world)
            model.refuse(full, world, found)
            private = {name: value for name, value in found.inputs.items() if name.startswith("__")}
            item = replace(
                found, inputs={**private, **inputs}, outputs=self._outputs(token, full, id, world)
            )
            self._refuse_duplicates(model, item, world)
            self._inventory.put(item)
            model.created(item, world)
        return item

    def delete(self, token: str, id: str, world: World) -> Item | None:
        """Removes one; None when it was gone already. Raises `CloudError` when something still
        needs it."""
        model = self._model(token)
        with self._inventory.transaction():
            found = self._find(token, id, world)
            if found is None:
                return None
            reason = model.blocks_delete(found, world)
            if reason:
                code, _, text = reason.partition(": ")
                raise CloudError(
                    *((code, text) if text and " " not in code else ("DependencyViolation", reason))
                )
            holder = self._holder(found, world)
            if holder is not None:
                raise CloudError(
                    "DependencyViolation",
                    f"{found.type} {found.id} has a dependent object and cannot be deleted:"
                    f" {holder.type} {holder.id}",
                )
            self._inventory.remove(found)
            for other in world.all():
                if _owned(other, found):
                    self._inventory.remove(other)
            model.deleted(found, world)
        return found

    def read(self, token: str, id: str, world: World) -> Item | None:
        return self._find(token, id, world)

    def _find(self, token: str, id: str, world: World) -> Item | None:
        scope = world.place.scope(self._model(token).level)
        found = self._inventory.items(type=token, id=id, scopes=(scope,))
        return found[0] if found else None

    def _schema(self, token: str) -> ResourceSchema:
        found = self._sdk.schema(token)
        if found is None:
            raise CloudError("InvalidType", f"there is no resource type {token!r}")
        return found

    def _outputs(self, token: str, inputs: Properties, id: str, world: World) -> Properties:
        model, schema = self._model(token), self._schema(token)
        made_up = {
            name: _made_up(kind, name, id)
            for name, kind in schema.outputs.items()
            if name not in schema.inputs
        }
        computed = {**made_up, **model.defaults, **_set(inputs), **_echoes(model, schema, inputs)}
        return {**computed, **model.outputs(inputs, id, world)}

    def _refuse_dangling_links(
        self, model: ResourceModel, inputs: Properties, world: World
    ) -> None:
        for link in model.links:
            for where, value in known(inputs, link.path):
                if isinstance(value, str) and not self._target(link, value, world):
                    raise CloudError(
                        link.not_found, f"{where}: {link.type} {value!r} does not exist"
                    )

    def _target(self, link: Link, value: str, world: World) -> Item | None:
        if "id" in link.by:
            found = world.get(value, link.type)
            if found:
                return found
        return next(
            (
                item
                for item in world.all(link.type)
                if any(item.outputs.get(key) == value for key in link.by)
            ),
            None,
        )

    def _refuse_duplicates(self, model: ResourceModel, item: Item, world: World) -> None:
        others = [
            other
            for other in self._inventory.items(type=item.type, scopes=(item.scope,))
            if other.id != item.id
        ]
        same_id = self._inventory.items(type=item.type, id=item.id, scopes=(item.scope,))
        if same_id and same_id[0].created_at != item.created_at:
            raise CloudError(model.duplicate_code, f"{item.id} exists already")
        for group in model.unique:
            mine = [item.outputs.get(name) for name in group]
            if mine[-1] is None:
                continue
            for other in others:
                if [other.outputs.get(name) for name in group] == mine:
                    shown = ", ".join(
                        f"{name} {value!r}" for name, value in zip(group, mine, strict=True)
                    )
                    raise CloudError(model.duplicate_code, f"{shown} exists already ({other.id})")
        del world

    def _holder(self, target: Item, world: World) -> Item | None:
        """Something that exists and, by its type's links, keeps `target` from being deleted."""
        for other in world.all():
            for link in self._model(other.type).links:
                if (
                    link.holds
                    and link.type == target.type
                    and other.id != target.id
                    and not _owned(other, target)
                ):
                    names = {target.id, *(target.outputs.get(key) for key in link.by)} - {None, ""}
                    if any(
                        value in names
                        for _, value in known(other.outputs, link.path)
                        if isinstance(value, str)
                    ):
                        return other
        return None


def _owned(item: Item, owner: Item) -> bool:
    """Whether a service made `item` for `owner`; such items go with it."""
    return item.inputs.get("__owner") == owner.id


def _echoes(model: ResourceModel, schema: ResourceSchema, inputs: Properties) -> Properties:
    names = {
        output: source
        for output, source in model.echoes.items()
        if output in schema.outputs and source in schema.inputs
    }
    return {
        output: inputs.get(source) or {} if inputs.get(source) is not UNKNOWN else UNKNOWN
        for output, source in names.items()
    }


def _with_computed(model: ResourceModel, inputs: Properties, old: Properties) -> Properties:
    """The inputs that are set; what the service adds inside of them is as before, or unknown."""
    result = _set(inputs)
    for path in model.computed:
        outer, inner = path.split(".")
        given = result.get(outer)
        if isinstance(given, dict) and given.get(inner) is None:
            before = old.get(outer)
            value = before.get(inner, UNKNOWN) if isinstance(before, dict) else UNKNOWN
            result[outer] = {**given, inner: value}
    return result


def _set(inputs: Properties) -> Properties:
    return {name: value for name, value in inputs.items() if value is not None}


def _made_up(kind: Kind, name: str, id: str) -> Any:
    """A value for an output that no model computes: of the right type, the same each time."""
    if kind == "string":
        return f"simulated-{name}-{hashlib.sha256(f'{id}/{name}'.encode()).hexdigest()[:8]}"
    if kind in ("integer", "number"):
        return 0
    if kind == "boolean":
        return False
    if isinstance(kind, list) and kind[0] in ("list", "map"):
        return [] if kind[0] == "list" else {}
    return None


__all__ = ["Lifecycle", "PartialError"]
