"""The volume of each replica that holds its spool: what it has recorded and not yet shipped."""

from typing import Annotated, Literal, NotRequired, Self, TypedDict

import pulumi
from pulumi_kubernetes.core.v1 import PersistentVolumeClaimSpecArgsDict
from pydantic import Field, model_validator

from terrace_common.names import GATEWAY
from terrace_components.arguments import Arguments, Quantity
from terrace_components.foundation.persistent_volume import node_volume
from terrace_components.gateway.pod import SPOOL_VOLUME

DEFAULT_SIZE = "2Gi"

AccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod"]


class SpoolArgs(TypedDict):
    """Where the replicas' spools live: a storage class, or directories of one node."""

    size: NotRequired[str]
    """Of each replica's volume; default ``2Gi``. 120,000 calls take about a tenth of that."""
    storage_class: NotRequired[str]
    """Storage class that provisions the volumes; default the cluster's own default class."""
    node: NotRequired[str]
    """Name of the node that has ``path``. Needs ``path``."""
    path: NotRequired[str]
    """Absolute directory on the node; each replica has one below it, by its number, kept."""
    access_mode: NotRequired[str]
    """Who may have a volume: the pods of one node (``ReadWriteOnce``, the default), or one pod
    (``ReadWriteOncePod``), which only CSI drivers can, and not directories of a node."""


class Spool(Arguments):
    """Checked ``SpoolArgs``."""

    size: Quantity = DEFAULT_SIZE
    storage_class: Annotated[str, Field(min_length=1)] | None = None
    node: Annotated[str, Field(min_length=1)] | None = None
    path: Annotated[str, Field(pattern=r"^/")] | None = None
    access_mode: AccessMode = "ReadWriteOnce"

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.node is None) != (self.path is None):
            raise ValueError("node and path belong together")
        if self.node is not None and self.storage_class is not None:
            raise ValueError("give node and path, or storage_class, not both")
        if self.node is not None and self.access_mode == "ReadWriteOncePod":
            raise ValueError("a directory of a node cannot be ReadWriteOncePod")
        return self

    @property
    def on_node(self) -> bool:
        """Whether the volumes are directories of a node."""
        return self.node is not None

    def claim(self) -> PersistentVolumeClaimSpecArgsDict:
        """What each replica claims."""
        wanted: PersistentVolumeClaimSpecArgsDict = {
            # Two guards on one spool would ruin it. Where the volume does not see to it, the number
            # of the StatefulSet's pod does, and the lock that a guard takes on its spool.
            "access_modes": [self.access_mode],
            "resources": {"requests": {"storage": self.size}},
        }
        if self.on_node:
            wanted["storage_class_name"] = ""
        elif self.storage_class is not None:
            wanted["storage_class_name"] = self.storage_class
        return wanted

    def volumes(
        self, name: str, namespace: pulumi.Input[str], most: int, opts: pulumi.ResourceOptions
    ) -> list[pulumi.Resource]:
        """The volumes on a node, one per possible replica, each kept for the claim of its number
        (a StatefulSet names claims itself, so the volume names the claim). None for a class."""
        if self.node is None:
            return []
        return [
            node_volume(
                f"{name}-spool-{number}",
                size=self.size,
                node=self.node,
                path=f"{self.path}/{number}",
                claim={"namespace": namespace, "name": f"{SPOOL_VOLUME}-{GATEWAY.name}-{number}"},
                opts=opts,
            )
            for number in range(most)
        ]
