"""`pulumi-resource-kubernetes`, simulated."""

import os
import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2

from ..inventory import Inventory, Item
from ..lifecycle import Lifecycle, PartialError
from ..models import CloudError, ResourceModel
from ..provider import SimulatedProvider
from ..schema_check import Problem
from ..sdk import Property, ResourceSchema, Sdk
from ..server import serve
from ..values import UNKNOWN, Properties, from_struct, to_struct
from ..world import World
from .clusters import Cluster
from .jobs import run_jobs, why_job_waits
from .models import ObjectModel, ReleaseModel, is_custom, why_release_is_not_ready
from .objects import token_parts
from .waiting import is_awaited, why_not_ready

PATIENCE_VARIABLE: Final = "SIMULATED_CLOUD_PATIENCE"
"""Seconds after which the provider gives up waiting for an object (the real one: ten minutes)."""
_RELEASE: Final = "kubernetes:helm.sh/v3:Release"
_AUTONAMED: Final = "pulumi.com/autonamed"
_POLL_SECONDS: Final = 0.05


class KubernetesSdk(Sdk):
    """The SDK, and custom resources, about which it says nothing."""

    def schema(self, token: str) -> ResourceSchema | None:
        if not is_custom(token_parts(token)[0].rpartition("/")[0]):
            return super().schema(token)
        anything = {name: Property("any") for name in ("spec", "status", "data", "metadata")}
        text = {name: Property("string", required=True) for name in ("apiVersion", "kind")}
        inputs = {**text, **anything}
        return ResourceSchema(token, inputs, {name: one.kind for name, one in inputs.items()})


class KubernetesLifecycle(Lifecycle):
    """Waits for what it made outside the transaction: others may make what it waits for."""

    upsert = False
    """Whether a create takes over an object that is there already."""

    def create(self, token: str, name: str, inputs: Properties, world: World) -> Item:
        if self.upsert and token != _RELEASE:
            id = self._model(token).identify(inputs, name, world)
            if self.read(token, id, world) is not None:
                return self.update(token, id, inputs, world)
        return _waited_for(super().create(token, name, inputs, world), world)

    def update(self, token: str, id: str, inputs: Properties, world: World) -> Item:
        return _waited_for(super().update(token, id, inputs, world), world)


class KubernetesProvider(SimulatedProvider):
    """One process; its configuration names one cluster."""

    package = "kubernetes"
    replace_provider_on = frozenset({"clusterIdentifier"})

    def __init__(self, inventory: Inventory, sdk: Sdk) -> None:
        super().__init__(inventory, sdk)
        self.lifecycle: KubernetesLifecycle = KubernetesLifecycle(inventory, sdk, self.model)

    def configure(self, config: Properties) -> None:
        self.lifecycle.upsert = config.get("upsertExistingObjects") in (True, "true")

    def check_config(self, config: Properties) -> Iterable[Problem]:
        given = config.get("kubeconfig")
        if isinstance(given, str) and not given.strip():
            yield Problem("kubeconfig", "is empty")

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Without an identifier, another kubeconfig (or one not known yet) is another cluster."""
        response = super().DiffConfig(request, context)
        if "clusterIdentifier" not in from_struct(request.news) and "kubeconfig" in response.diffs:
            response.replaces.append("kubeconfig")
        return response

    def place(self, inputs: Properties) -> Any:
        del inputs
        return Cluster.of_provider(self.inventory, self.config)

    def model(self, token: str) -> ResourceModel:
        kind = token_parts(token)[1]
        if token == _RELEASE:
            return ReleaseModel()
        option = f"enable{kind}Mutable"
        return ObjectModel(kind, mutable=self.config.get(option) in (True, "true"))

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Names what has no name: as the old one, or the logical name and eight hex digits."""
        token, inputs = request.type or request.urn.split("::")[2].split("$")[-1], None
        news, olds = from_struct(request.news), from_struct(request.olds)
        name = request.name or request.urn.split("::")[3]
        suffix = bytes(request.randomSeed).hex()[:8] or os.urandom(4).hex()
        if token == _RELEASE:
            if news.get("name") is None:
                inputs = {**news, "name": olds.get("name") or f"{name}-{suffix}"}
        elif news.get("metadata") is not UNKNOWN:
            metadata = news.get("metadata") or {}
            if metadata.get("name") is None and metadata.get("generateName") is None:
                before = olds.get("metadata") or {}
                notes = {**(metadata.get("annotations") or {}), _AUTONAMED: "true"}
                chosen = before.get("name") or f"{name}-{suffix}"
                inputs = {**news, "metadata": {**metadata, "annotations": notes, "name": chosen}}
        if inputs is not None:
            request.news.CopyFrom(to_struct(inputs))
        return super().Check(request, context)

    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Two differences to other providers: a change above a path that replaces (a whole ``spec``
        that is not known yet) is an update, and what keeps its fixed name is deleted before it is
        replaced."""
        response = super().Diff(request, context)
        token = request.type or request.urn.split("::")[2].split("$")[-1]
        keys = self.model(token).replace_on
        kinds = provider_pb2.PropertyDiff
        for path, difference in response.detailedDiff.items():
            if difference.kind == kinds.UPDATE_REPLACE and not any(
                re.match(rf"{re.escape(key)}($|[.\[])", path) for key in keys
            ):
                difference.kind = kinds.UPDATE
        replaces = [p for p, d in response.detailedDiff.items() if d.kind == kinds.UPDATE_REPLACE]
        del response.replaces[:]
        response.replaces.extend(sorted(replaces))
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        response.deleteBeforeReplace = bool(replaces) and _keeps_its_name(old, new)
        return response

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """An object of a cluster that is gone can be forgotten on request; a release cannot."""
        wanted = self.config.get("deleteUnreachable") in (True, "true") or (
            os.environ.get("PULUMI_K8S_DELETE_UNREACHABLE") == "true"
        )
        token = request.type or request.urn.split("::")[2].split("$")[-1]
        if wanted and token != _RELEASE and self.place({}).unreachable():
            return empty_pb2.Empty()
        return super().Delete(request, context)

    def _call(  # noqa: PLR0917  as in the class above
        self,
        context: grpc.ServicerContext,
        operation: str,
        token: str,
        name: str,
        world: World,
        work: Callable[[], Any],
    ) -> Any:
        def reached() -> Any:
            if reason := world.place.unreachable():
                hint = (
                    ". If the cluster was deleted, PULUMI_K8S_DELETE_UNREACHABLE=true removes the"
                    " resource from the state"
                    if operation == "delete" and token != _RELEASE
                    else ""
                )
                raise CloudError(
                    "Unreachable", f"configured Kubernetes cluster is unreachable: {reason}{hint}"
                )
            return work()

        return super()._call(context, operation, token, name, world, reached)


def _keeps_its_name(old: Properties, new: Properties) -> bool:
    """Whether the program fixed the name, and it is still the same in the same namespace."""
    before, after = old.get("metadata"), new.get("metadata")
    if not isinstance(before, dict) or not isinstance(after, dict):
        return False
    notes = after.get("annotations")
    if isinstance(notes, dict) and _AUTONAMED in notes:
        return False
    return all(before.get(key) == after.get(key) for key in ("name", "namespace"))


def _waited_for(item: Item, world: World) -> Item:
    cluster: Cluster = world.place
    deadline = time.monotonic() + float(os.environ.get(PATIENCE_VARIABLE, "10"))
    while (reason := _why_not_ready(item, cluster)) is not None:
        if time.monotonic() > deadline:
            raise PartialError(item, f"{item.id}: timed out waiting to be ready: {reason}")
        time.sleep(_POLL_SECONDS)
    return item


def _why_not_ready(item: Item, cluster: Cluster) -> str | None:
    if item.type == _RELEASE:
        awaited = not item.inputs.get("skipAwait")
        return why_release_is_not_ready(item, cluster) if awaited else None
    if item.inputs.get("kind") == "Job":
        reason = why_job_waits(item, cluster)
        return reason if is_awaited(item.inputs) else None
    if not is_awaited(item.inputs):
        return None
    run_jobs(cluster)
    return why_not_ready(item.inputs, cluster)


def main() -> None:
    """Serve until the engine ends the process."""
    serve(KubernetesProvider(Inventory(), KubernetesSdk("kubernetes")))
