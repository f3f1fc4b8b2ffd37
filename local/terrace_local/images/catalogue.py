"""Which images there are, and which files of the repository decide what is in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

REGISTRY = "terrace.local"
BASE = "base"
_DOCKERFILES = "local/terrace_local/images/dockerfiles"


@dataclass(frozen=True, kw_only=True)
class ImageSpec:
    """One image. Paths are relative to the repository's root; folders mean all that is in them."""

    name: str
    dockerfile: str
    inputs: tuple[str, ...] = ()
    """What the Dockerfile may COPY, and nothing else."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    version: str
    licenses: str
    """SPDX, of what the image is for; Debian's packages keep their copyright files."""


def _service(folder: str, lock: str | None, *more: str, common: bool = False) -> ImageSpec:
    name = folder.replace("_", "-")
    inputs = [f"services/{folder}/pyproject.toml", f"services/{folder}/terrace_{folder}", *more]
    if lock:
        inputs += ["requirements/build.lock", f"requirements/{lock}.lock"]
    if common:
        inputs += ["services/common/pyproject.toml", "services/common/terrace_common"]
    return ImageSpec(
        name=name,
        dockerfile=f"services/{folder}/Dockerfile",
        inputs=tuple(inputs),
        version="0.1.0",
        licenses="Apache-2.0",
    )


BASE_IMAGE = ImageSpec(
    name=BASE, dockerfile=f"{_DOCKERFILES}/base/Dockerfile", version="12", licenses="various"
)
IMAGES: Mapping[str, ImageSpec] = {
    spec.name: spec
    for spec in (
        _service("gateway", "gateway", common=True),
        _service("model_simulator", "model-simulator", common=True),
        _service("quota_sync", "quota-sync", common=True),
        _service("translator", "translator", "services/translator/strip.sh"),
        _service("secret_bootstrap", None),
        ImageSpec(
            name="postgres",
            dockerfile=f"{_DOCKERFILES}/postgres/Dockerfile",
            inputs=(f"{_DOCKERFILES}/postgres/terrace-postgres",),
            version="15",
            licenses="PostgreSQL",
        ),
        ImageSpec(
            name="prometheus",
            dockerfile=f"{_DOCKERFILES}/prometheus/Dockerfile",
            version="2.42",
            licenses="Apache-2.0",
        ),
    )
}


def repository_root() -> Path:
    """The checkout that this package lies in; the images are built from its files."""
    return Path(__file__).resolve().parents[3]
