"""Schema of ``substrate.json``: what the embedded cluster publishes and the blueprints read."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from terrace_common.names import IMAGES

ImageReference = Annotated[str, Field(pattern=r"^[^\s:@]+(:\d+)?/[^\s:@]+:[A-Za-z0-9._-]+$")]


class LocalSubstrateFile(BaseModel):
    """The local substrate as plain data. Read it with ``model_validate_json``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    kubeconfig: str = Field(min_length=1)
    """Absolute path of the kubeconfig file (mode 600)."""
    cluster_identifier: str = Field(pattern=r"^terrace-local-[0-9a-f]{8}$")
    """New with every new cluster, so that Pulumi never takes one cluster for another."""
    node_name: str = "terrace-local"
    node_address: str = "10.89.0.1"
    volumes_root: str = "/var/lib/terrace/volumes"
    images: dict[str, ImageReference]
    """Image reference by service; keys are among ``names.IMAGES``."""
    isolation: Literal["runc", "gvisor"] = "runc"

    def missing_images(self) -> tuple[str, ...]:
        """Names of stage-1 images that the file does not have."""
        return tuple(name for name in IMAGES if name not in self.images)
