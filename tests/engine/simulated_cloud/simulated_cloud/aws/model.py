"""What AWS types have in common: ARNs among their inputs, tags, ids with a prefix."""

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..models import CloudError, Problem, ResourceModel
from ..values import UNKNOWN, Properties, known
from ..world import World
from .place import parse_arn

TAG_KEY_LIMIT = 128
TAG_VALUE_LIMIT = 256


@dataclass(frozen=True)
class ArnOf:
    """An input that holds an ARN: of which service, with a resource part that matches `resource`.

    Its partition must be the provider's; with `here`, its region and account too, where it names
    one.
    """

    path: str
    service: str
    resource: str = ".+"
    here: bool = False
    or_name: bool = False
    """A plain name (no `arn:`) is also accepted."""


class AwsModel(ResourceModel):
    """A type of AWS."""

    arns: ClassVar[Sequence[ArnOf]] = ()
    echoes: ClassVar[dict[str, str]] = {"tagsAll": "tags"}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for expected in self.arns:
            yield from _check_arns(expected, inputs, world)
        yield from _check_tags(inputs.get("tags"))

    def arn_in(self, world: World, service: str, resource: str) -> str:
        """An ARN in the provider's account and region."""
        arn: str = world.place.arn(service, resource)
        return arn


class OtherModel(AwsModel):
    """A type without a model of its own: an ARN from its token, everything else as the SDK says."""

    def __init__(self, token: str) -> None:
        _, self._service, self._kind, *_ = [*re.split("[:/]", token), "", ""]

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, self._service, f"{self._kind}/{id}")}


def _check_arns(expected: ArnOf, inputs: Properties, world: World) -> Iterator[Problem]:
    place = world.place
    for where, value in known(inputs, expected.path):
        if expected.or_name and not str(value).startswith("arn:"):
            continue
        arn = parse_arn(str(value))
        if arn is None:
            yield Problem(
                where, f"{value!r} is not an ARN (arn:{place.partition}:{expected.service}:...)"
            )
        elif arn.partition != place.partition:
            yield Problem(
                where,
                f"{value!r} is of partition {arn.partition}, the provider works in"
                f" {place.partition}",
            )
        elif arn.service != expected.service or not re.fullmatch(expected.resource, arn.resource):
            yield Problem(
                where,
                f"{value!r} must be an ARN of {expected.service}, its resource like"
                f" {expected.resource}",
            )
        elif expected.here and arn.region and arn.region != place.region:
            yield Problem(
                where, f"{value!r} is in region {arn.region}, the provider works in {place.region}"
            )


def _check_tags(tags: Any) -> Iterator[Problem]:
    if not isinstance(tags, dict):
        return
    if len(tags) > 50:
        yield Problem("tags", f"{len(tags)} tags; AWS takes 50")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_LIMIT or key.lower().startswith("aws:"):
            yield Problem(
                f"tags[{key!r}]", "a tag key has 1 to 128 characters and does not start with aws:"
            )
        if value is not UNKNOWN and value is not None and len(str(value)) > TAG_VALUE_LIMIT:
            yield Problem(
                f"tags[{key!r}]",
                f"the value has {len(str(value))} characters; AWS takes {TAG_VALUE_LIMIT}",
            )


def digest(*parts: str, length: int = 8) -> str:
    """Hex digits made of `parts`, the same each time."""
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:length]


def derived_id(prefix: str, *parts: str) -> str:
    """An id such as `sg-0f...` that follows from `parts`."""
    return f"{prefix}-{digest(prefix, *parts, length=17)}"


def not_found(code: str, what: str) -> CloudError:
    return CloudError(code, f"{what} does not exist")
