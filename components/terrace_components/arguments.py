"""What component arguments have in common: shared argument types, and how they are checked.

Public arguments are ``TypedDict``s (a hosted component receives a plain dict). Each component has a
private frozen model of the same keys, derived from ``Arguments``, that fills defaults, coerces
(the engine sends integers as floats) and raises ``pulumi.InputPropertyError``.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, NotRequired, Self, TypedDict, TypeVar, cast

import pulumi
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import ErrorDetails


class ResourcesArgs(TypedDict):
    """What a container asks for and the memory it may use. There is no CPU limit: a throttled
    guard would make every caller wait while CPU is idle."""

    cpu: str
    """CPU request, a Kubernetes quantity such as ``150m``."""
    memory: str
    """Memory request, such as ``450Mi``."""
    memory_limit: str
    """Memory at which the container is killed, such as ``900Mi``."""


class StorageArgs(TypedDict):
    """Where a persistent volume lives: a directory of one node, or a storage class."""

    size: str
    """Size of the claim, such as ``2Gi``."""
    node: NotRequired[str]
    """Name of the node that has ``path``. Needs ``path``."""
    path: NotRequired[str]
    """Absolute directory on the node; made if absent, kept when the volume is deleted."""
    storage_class: NotRequired[str]
    """Storage class that provisions the volume, instead of ``node`` and ``path``."""


class PodPeerArgs(TypedDict):
    """A port of pods in a namespace: what a NetworkPolicy opens a way to."""

    namespace: str
    """Namespace of the pods."""
    pod: NotRequired[str]
    """``app.kubernetes.io/name`` of the pods. Absent: every pod of the namespace."""
    port: int
    """The pods' port, 1 to 65535."""


class AddressArgs(TypedDict):
    """A port of an address range outside the pod network."""

    cidr: str
    """Address range, such as ``10.89.0.1/32``."""
    port: int
    """TCP port, 1 to 65535."""


class SchedulingArgs(TypedDict):
    """Which nodes pods may run on."""

    node_selector: NotRequired[dict[str, str]]
    """Labels that the node must have."""
    tolerations: NotRequired[list[dict[str, Any]]]
    """Kubernetes tolerations, in Kubernetes' own spelling."""


QUANTITY = r"^\d+(\.\d+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"
DNS_LABEL = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"

Quantity = Annotated[str, Field(pattern=QUANTITY)]
Port = Annotated[int, Field(ge=1, le=65535)]
NodePort = Annotated[int, Field(ge=30000, le=32767)]
Name = Annotated[str, Field(pattern=DNS_LABEL)]
Cidr = Annotated[str, Field(pattern=r"^[0-9a-fA-F.:]+/\d{1,3}$")]


def _image(value: Any) -> str | pulumi.Output[str]:
    if isinstance(value, pulumi.Output):
        return cast(pulumi.Output[str], value)
    if not isinstance(value, str):
        raise ValueError("must be an image reference")  # noqa: TRY004  pydantic wants ValueError
    last = value.rsplit("/", maxsplit=1)[-1]
    if last.endswith(":latest") or (":" not in last and "@sha256:" not in value):
        raise ValueError(
            "must name one image by tag or digest, not latest: registry/name:tag or name@sha256:..."
        )
    return value


def _text(value: Any) -> str | pulumi.Output[str]:
    if isinstance(value, pulumi.Output):
        return cast(pulumi.Output[str], value)
    if isinstance(value, str) and value:
        return value
    raise ValueError("must be a text that is not empty, or an output of one")


Image = Annotated[str | pulumi.Output[str], PlainValidator(_image)]
Text = Annotated[str | pulumi.Output[str], PlainValidator(_text)]


T = TypeVar("T")


class LateArgumentError(pulumi.InputPropertyError, pulumi.RunError):
    """A wrong argument that shows only when AWS has answered: a program ends with this text and
    without a traceback, a hosted component with an error of the property."""

    spelling: ClassVar[Callable[[str, str], str]] = "{}: {}".format
    """Text for a path and a reason. A program whose settings are spelled otherwise sets it."""

    def __str__(self) -> str:
        return type(self).spelling(str(self.property_path), str(self.reason))


def late(output: pulumi.Output[T], property_name: str | None = None) -> pulumi.Output[T]:
    """``output``, but its checks fail with ``LateArgumentError``, and so does AWS' refusal of the
    question behind it, which is then about ``property_name`` (``None``: it stays as it is)."""

    def told(error: Exception) -> pulumi.Input[T]:
        if isinstance(error, pulumi.InputPropertyError):
            raise LateArgumentError(str(error.property_path), str(error.reason)) from None
        if property_name is None or isinstance(error, pulumi.RunError):
            raise error
        said = " ".join(str(error).rpartition("returned an error: ")[2].split())
        raise LateArgumentError(property_name, said) from None

    return output.recover(told)


class Arguments(BaseModel):
    """Checked arguments of one component. Immutable; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Self:
        """The checked form of ``args``. Raises ``pulumi.InputPropertyError`` for the first problem,
        naming the property and what would be valid."""
        try:
            return cls.model_validate(dict(args))
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
        raise pulumi.InputPropertyError(_path(problem), _reason(cls, problem))


class Resources(Arguments):
    """Checked ``ResourcesArgs``."""

    cpu: Quantity
    memory: Quantity
    memory_limit: Quantity


class PodPeer(Arguments):
    """Checked ``PodPeerArgs``."""

    namespace: Name
    pod: Name | None = None
    port: Port


class Address(Arguments):
    """Checked ``AddressArgs``."""

    cidr: Cidr
    port: Port


class Scheduling(Arguments):
    """Checked ``SchedulingArgs``."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[dict[str, Any]] = Field(default_factory=list)


def _path(problem: ErrorDetails) -> str:
    return ".".join(str(part) for part in problem["loc"]) or "args"


def _reason(model: type[Arguments], problem: ErrorDetails) -> str:
    if problem["type"] == "extra_forbidden":
        section = _section(model, problem["loc"][:-1])
        valid = sorted(section.model_fields)
        near = difflib.get_close_matches(str(problem["loc"][-1]), valid, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return f"unknown property{hint} Valid here: {', '.join(valid)}"
    if problem["type"] == "missing":
        return "is required"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{message}; got {problem['input']!r}"


def _section(model: type[Arguments], location: tuple[int | str, ...]) -> type[Arguments]:
    """The model of the nested arguments at ``location``."""
    for part in location:
        if not isinstance(part, str):
            continue
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, Arguments))
    return model
