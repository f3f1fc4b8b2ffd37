"""A persistent volume claim, on a directory of one node or by a storage class."""

from typing import Annotated, Self, TypedDict

import pulumi
import pulumi_kubernetes as k8s
from pydantic import Field, model_validator

from terrace_components.arguments import Arguments, Name, Quantity, StorageArgs, Text
from terrace_components.objects import SKIP_AWAIT, name_of


class PersistentVolumeArgs(TypedDict):
    """Arguments of ``PersistentVolume``."""

    namespace: pulumi.Input[str]
    """Namespace of the claim."""
    claim: str
    """Name of the claim."""
    storage: StorageArgs
    """Where the data lives."""


class Storage(Arguments):
    """Checked ``StorageArgs``."""

    size: Quantity
    node: str | None = None
    path: Annotated[str, Field(pattern=r"^/")] | None = None
    storage_class: str | None = None

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        on_node = self.node is not None and self.path is not None
        half = (self.node is None) != (self.path is None)
        if half or on_node == (self.storage_class is not None):
            raise ValueError("give node and path, or storage_class")
        return self


class _PersistentVolume(Arguments):
    namespace: Text
    claim: Name
    storage: Storage


class PersistentVolume(pulumi.ComponentResource):
    """A claim whose data outlives it: deleting the component keeps the directory.

    The volume of a node is bound to this claim by name, so no other claim can take it; it is made
    root's at first use, see ``pods.own_volume``.

    Creates: PersistentVolumeClaim, and a PersistentVolume (reclaim policy Retain) on a node.
    """

    claim: pulumi.Output[str]
    """Name of the claim."""

    def __init__(
        self,
        name: str,
        args: PersistentVolumeArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:PersistentVolume", name, None, opts)
        given = _PersistentVolume.of(args)
        storage = given.storage
        child = pulumi.ResourceOptions(parent=self)
        wanted: k8s.core.v1.PersistentVolumeClaimSpecArgsDict = {
            "access_modes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": storage.size}},
        }
        if storage.storage_class is not None:
            wanted["storage_class_name"] = storage.storage_class
        if storage.path is not None:
            volume = node_volume(
                name,
                size=storage.size,
                node=str(storage.node),
                path=storage.path,
                claim={"namespace": given.namespace, "name": given.claim},
                opts=child,
            )
            wanted["storage_class_name"] = ""
            wanted["volume_name"] = name_of(volume)
        claim = k8s.core.v1.PersistentVolumeClaim(
            f"{name}-claim",
            metadata={
                "name": given.claim,
                "namespace": given.namespace,
                # Some classes bind only when a pod wants the volume: waiting here would not end.
                "annotations": {**SKIP_AWAIT},
            },
            spec=wanted,
            opts=child,
        )
        self.claim = name_of(claim)
        self.register_outputs({"claim": self.claim})


def node_volume(
    name: str,
    *,
    size: str,
    node: str,
    path: str,
    claim: k8s.core.v1.ObjectReferenceArgsDict,
    opts: pulumi.ResourceOptions,
) -> k8s.core.v1.PersistentVolume:
    """A volume in a directory of one node, for one claim alone; the directory is kept."""
    return k8s.core.v1.PersistentVolume(
        name,
        metadata={"name": name},
        spec={
            "capacity": {"storage": size},
            "access_modes": ["ReadWriteOnce"],
            "persistent_volume_reclaim_policy": "Retain",
            "storage_class_name": "",
            "claim_ref": claim,
            "host_path": {"path": path, "type": "DirectoryOrCreate"},
            "node_affinity": {
                "required": {
                    "node_selector_terms": [
                        {
                            "match_expressions": [
                                {
                                    "key": "kubernetes.io/hostname",
                                    "operator": "In",
                                    "values": [node],
                                }
                            ]
                        }
                    ]
                }
            },
        },
        opts=opts,
    )
