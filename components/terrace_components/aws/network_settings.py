"""Arguments of ``AwsNetwork``, and what about them can be wrong before AWS is asked."""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NotRequired, TypedDict

import pulumi
from pydantic import AfterValidator, Field, field_validator
from pydantic_core.core_schema import ValidationInfo

from terrace_components.arguments import Arguments
from terrace_components.aws.arguments import Different, Ipv4Range, KeyArn, Tags, one_of
from terrace_components.aws.existing_network import ExistingNetwork, ExistingNetworkArgs
from terrace_components.aws.flow_logs import RETENTION_DAYS
from terrace_components.aws.subnet_plan import (
    ZONE_LETTERS,
    SubnetPlan,
    check_pods,
    check_vpc_range,
    subnet_plan,
)
from terrace_components.aws.vpc_endpoints import STAGE_ONE

DEFAULT_CIDR = "10.20.0.0/16"
DEFAULT_ZONE_COUNT = 3
DEFAULT_RETENTION_DAYS = 90
PER_ZONE, SHARED, NONE = NAT = ("per-zone", "shared", "none")
ZONE = re.compile(rf"[a-z]{{2}}(-[a-z]+)+-\d[{ZONE_LETTERS}]")


class AwsNetworkArgs(TypedDict):
    """Arguments of ``AwsNetwork``."""

    # instead of everything below but `pods` and `tags`
    existing: NotRequired[ExistingNetworkArgs]
    """A VPC that exists, to be used as it is."""
    # zones
    zones: NotRequired[list[str]]
    """Names of 2 to 6 zones, such as ``eu-west-1a``. A subnet's range belongs to its zone's
    letter, so zones may be added and removed later. The first one has the shared NAT."""
    zone_count: NotRequired[int]
    """Instead of ``zones``: the first so many of the region that EKS can use, 2 to 6; default 3.
    They are chosen once: a zone that appears later moves nothing."""
    # ways out
    nat: NotRequired[str]
    """``per-zone`` (default: a lost zone takes no other with it), ``shared`` (one NAT gateway,
    cheaper), or ``none`` (no way to the internet: AWS is reached by endpoints only)."""
    public_subnets: NotRequired[bool]
    """Public subnets and an internet gateway; default only where NAT needs them."""
    # sizes
    pods: NotRequired[int]
    """How many pods must fit beside nodes and endpoints. Too many for ``cidr`` are refused."""
    cidr: NotRequired[str]
    """Range of the VPC, /16 to /28 and private; default 10.20.0.0/16. An eighth per zone becomes
    the private subnet, an eighth is cut into public ones, the rest is left for later."""
    endpoints: NotRequired[list[str]]
    """AWS services that get an interface endpoint, such as ``ecr.api``, or their whole names.
    Default: none beside a NAT; without one what stage 1 calls (``vpc_endpoints.STAGE_ONE``).
    S3 always has its gateway endpoint."""
    # logs
    flow_logs: NotRequired[bool]
    """Log every flow to CloudWatch; default true."""
    flow_log_retention_days: NotRequired[int]
    """Days that flow logs are kept, one of CloudWatch's values; default 90."""
    flow_log_key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the flow logs, whose policy must let CloudWatch Logs use it."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


def _zone(value: str) -> str:
    if not ZONE.fullmatch(value):
        raise ValueError(
            f"must be the name of an availability zone such as eu-west-1a; not {value!r}"
        )
    return value


class NetworkSettings(Arguments):
    """Checked arguments that no other part gives."""

    existing: ExistingNetwork | None = None
    zones: (
        Annotated[
            list[Annotated[str, AfterValidator(_zone)]],
            Different,
            Field(min_length=2, max_length=6),
        ]
        | None
    ) = None
    zone_count: Annotated[int, Field(ge=2, le=len(ZONE_LETTERS))] | None = None
    nat: Annotated[str, one_of(*NAT)] = NAT[0]
    public_subnets: bool | None = None
    pods: Annotated[int, Field(ge=1)] | None = None
    cidr: Annotated[Ipv4Range | None, Field(validate_default=True)] = None
    endpoints: Annotated[list[Annotated[str, Field(min_length=2)]], Different] | None = None
    flow_logs: bool | None = None
    flow_log_retention_days: Annotated[int, one_of(*RETENTION_DAYS)] | None = None

    @field_validator(
        "zones", "zone_count", "nat", "public_subnets", "endpoints", "flow_logs",
        "flow_log_retention_days",
    )  # fmt: skip
    @classmethod
    def _not_beside_existing(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("existing") is not None:
            raise ValueError("cannot be given beside existing: nothing is made in that VPC")
        return value

    @field_validator("zones")
    @classmethod
    def _zones_of_one_region(cls, value: list[str] | None) -> list[str] | None:
        regions = sorted({zone[:-1] for zone in value or []})
        if len(regions) > 1:
            raise ValueError(f"must be zones of one region, not of {', '.join(regions)}")
        return value

    @field_validator("zone_count")
    @classmethod
    def _zones_or_their_number(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("zones") is not None:
            raise ValueError("cannot be given beside zones, which says how many there are")
        return value

    @field_validator("public_subnets")
    @classmethod
    def _nat_stands_in_public_subnets(cls, value: bool | None, info: ValidationInfo) -> Any:
        if value is False and info.data.get("nat", "none") != "none":
            raise ValueError("must be true, or nat must be none: a NAT gateway stands in them")
        return value

    @field_validator("cidr")
    @classmethod
    def _everything_fits(cls, value: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("existing") is not None:
            if value is not None:
                raise ValueError("cannot be given beside existing; existing.cidr names its range")
            return None
        cidr = value or DEFAULT_CIDR
        check_vpc_range(cidr)
        letters = _letters(info.data.get("zones"), info.data.get("zone_count"))
        subnet_plan(cidr, letters, public=_public(info.data))
        if info.data.get("pods") is not None:
            check_pods(info.data["pods"], cidr, len(letters))
        return cidr

    @field_validator("flow_log_retention_days")
    @classmethod
    def _only_with_flow_logs(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and info.data.get("flow_logs") is False:
            raise ValueError("cannot be given with flow_logs: false")
        return value

    @property
    def letters(self) -> list[str]:
        """Letters of the zones, which name the subnets and their ranges."""
        return _letters(self.zones, self.zone_count)

    @property
    def plan(self) -> SubnetPlan:
        """Ranges of the subnets."""
        return subnet_plan(self.cidr or DEFAULT_CIDR, self.letters, public=self.with_public)

    @property
    def with_public(self) -> bool:
        """Whether there are public subnets."""
        return _public({"public_subnets": self.public_subnets, "nat": self.nat})

    @property
    def services(self) -> list[str]:
        """Services with an interface endpoint."""
        if self.endpoints is not None:
            return self.endpoints
        return sorted(STAGE_ONE) if self.nat == NONE else []


class NetworkArguments(NetworkSettings):
    flow_log_key_arn: KeyArn | None = None
    tags: Tags = Field(default_factory=dict)

    @field_validator("flow_log_key_arn")
    @classmethod
    def _key_only_with_flow_logs(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("flow_logs") is False:
            raise ValueError("cannot be given with flow_logs: false")
        if value is not None and info.data.get("existing") is not None:
            raise ValueError("cannot be given beside existing: nothing is made in that VPC")
        return value


def _letters(zones: Sequence[str] | None, zone_count: int | None) -> list[str]:
    if zones is not None:
        return [zone[-1] for zone in zones]
    return list(ZONE_LETTERS[: zone_count or DEFAULT_ZONE_COUNT])


def _public(settings: Mapping[str, Any]) -> bool:
    wanted = settings.get("public_subnets")
    return settings.get("nat", PER_ZONE) != NONE if wanted is None else bool(wanted)
