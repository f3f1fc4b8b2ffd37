"""The port behind which image builders stand. buildah today; docker and podman fit it too."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One image to build from a Dockerfile."""

    reference: str
    dockerfile: Path
    context: Path
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Secret id -> file; a `RUN --mount=type=secret` sees it, no layer does."""
    volumes: Mapping[Path, str] = field(default_factory=dict)
    """Host path -> path in the build, read-only, in no layer."""
    squash: bool = False


class ImageBuilder(Protocol):
    """Turns Dockerfiles into images and images into archives. Errors are ImageError."""

    def pull(self, source: str, *, seconds: float) -> str | None:
        """The local name of a registry's image, or None if it was not to be had in that time."""

    def take_in(self, archive: Path, reference: str) -> None:
        """Makes the image in a docker-archive known to this builder under `reference`."""

    def take_in_root(self, root_tar: Path, reference: str) -> None:
        """Makes an image of one layer from a tar of a root file system."""

    def build(self, request: BuildRequest) -> None:
        """Builds; the image is then known to this builder as `request.reference`."""

    def write_archive(self, reference: str, archive: Path) -> None:
        """Writes a docker-archive with that reference in it."""

    def reset(self) -> None:
        """Throws away all that the builder has stored (a cache), when it may be damaged."""

    def trim(self) -> None:
        """Keeps what the builder has stored within a bound. Called after a build."""
