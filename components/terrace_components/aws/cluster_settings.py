"""The checked settings of an EKS cluster."""

import ipaddress
import re
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from terrace_components.arguments import Arguments
from terrace_components.aws.arguments import Different, Ipv4Range, one_of
from terrace_components.aws.database_settings import SecurityGroupId
from terrace_components.aws.existing import made_here
from terrace_components.aws.flow_logs import RETENTION_DAYS

KUBERNETES_VERSION = "1.35"
SERVICE_CIDR = "172.20.0.0/16"  # what EKS itself takes beside a VPC in 10.0.0.0/8
LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")
OLDEST_MINOR = 32  # AL2023, Pod Identity and network policies as this package uses them
WIDEST_PREFIX = 8
MOST_RANGES = 40  # EKS's quota of public access ranges
PRIVATE = tuple(
    ipaddress.IPv4Network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")
)


def _version(value: str) -> str:
    match = re.fullmatch(r"1\.(\d{2})", value)
    if match is None or int(match[1]) < OLDEST_MINOR:
        raise ValueError(f"must be a minor version from 1.{OLDEST_MINOR}, such as 1.35")
    return value


def _public_ranges(values: list[str]) -> list[str]:
    if len(values) > MOST_RANGES:
        raise ValueError(f"must be at most {MOST_RANGES} ranges")
    for value in values:
        network = ipaddress.IPv4Network(value)
        if network.prefixlen < WIDEST_PREFIX:
            raise ValueError(
                f"must name the ranges of your own offices and runners, none wider than "
                f"/{WIDEST_PREFIX}; {value} is most of the internet. "
                "For no public access at all: private_api: true"
            )
        if any(network.overlaps(private) for private in PRIVATE):
            raise ValueError(
                f"must be public addresses: {value} is private, EKS refuses it here. What is "
                "inside the VPC reaches the API by its private endpoint"
            )
    return values


def _inside_ranges(values: list[str]) -> list[str]:
    for value in values:
        if ipaddress.IPv4Network(value).prefixlen < WIDEST_PREFIX:
            raise ValueError(
                f"must name the networks of your own runners and offices, none wider than "
                f"/{WIDEST_PREFIX}; not {value}"
            )
    return values


def _admins(values: list[str]) -> list[str]:
    for value in values:
        if ":assumed-role/" in value:
            raise ValueError(
                f"must name the role itself, arn:<partition>:iam::...:role/...: {value}"
            )
        if not re.fullmatch(r"arn:aws[a-z-]*:iam::\d{12}:(role|user)/[\w+=,.@/-]+", value):
            raise ValueError(
                "must be ARNs of IAM roles or users, arn:<partition>:iam::<account>:role/<name>; "
                f"not {value!r}"
            )
    return values


def _service_cidr(value: str) -> str:
    network = ipaddress.IPv4Network(value)
    inside = any(network.subnet_of(private) for private in PRIVATE[:3])
    if not inside or not 12 <= network.prefixlen <= 24:
        raise ValueError(
            "must be a range of /12 to /24 inside 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16"
        )
    return value


KubernetesVersion = Annotated[str, AfterValidator(_version)]


class ExistingCluster(Arguments):
    """Checked ``ExistingClusterArgs``."""

    name: Annotated[str, Field(pattern=r"^[0-9A-Za-z][A-Za-z0-9_-]{0,99}$")]


class ClusterSettings(Arguments):
    """What a person chooses about the cluster."""

    existing: ExistingCluster | None = None
    kubernetes_version: KubernetesVersion = KUBERNETES_VERSION
    private_api: bool = False
    api_access_cidrs: Annotated[
        list[Ipv4Range], Different, AfterValidator(_public_ranges), Field(validate_default=True)
    ] = Field(default_factory=list)
    api_client_security_group_ids: list[SecurityGroupId] = Field(default_factory=list)
    private_api_cidrs: Annotated[
        list[Ipv4Range], Different, AfterValidator(_inside_ranges), Field(validate_default=True)
    ] = Field(default_factory=list)
    admins: Annotated[list[str], Different, AfterValidator(_admins)] = Field(default_factory=list)
    log_types: Annotated[list[Annotated[str, one_of(*LOG_TYPES)]], Different] = Field(
        default_factory=lambda: [*LOG_TYPES]
    )
    log_retention_days: Annotated[int, one_of(*RETENTION_DAYS)] = 90
    service_cidr: Annotated[Ipv4Range, AfterValidator(_service_cidr)] = SERVICE_CIDR
    deletion_protection: bool = True
    support: Annotated[str, one_of("STANDARD", "EXTENDED")] = "STANDARD"

    made = field_validator(
        "kubernetes_version",
        "private_api",
        "api_client_security_group_ids",
        "log_types",
        "log_retention_days",
        "service_cidr",
        "deletion_protection",
        "support",
    )(made_here)

    @field_validator("api_access_cidrs")
    @classmethod
    def somebody_reaches_the_api(cls, value: list[str], info: ValidationInfo) -> list[str]:
        """A public endpoint is open to named ranges only; a private one has none."""
        if info.data.get("existing") is not None:
            return value if not value else made_here(value, info)
        if info.data.get("private_api") and value:
            raise ValueError("must be empty with private_api: true, which has no public endpoint")
        if not info.data.get("private_api") and not value:
            raise ValueError(
                "must name at least one range that may reach the API, such as 203.0.113.0/24; "
                "or set private_api: true and run Pulumi inside the VPC"
            )
        return value

    @field_validator("private_api_cidrs")
    @classmethod
    def somebody_reaches_the_private_api(cls, value: list[str], info: ValidationInfo) -> list[str]:
        """The group that EKS makes lets in the cluster's own members only."""
        if info.data.get("existing") is not None:
            return value if not value else made_here(value, info)
        clients = info.data.get("api_client_security_group_ids", [...])  # wrong: reported there
        if info.data.get("private_api") and not value and not clients:
            raise ValueError(
                "must name at least one range that may reach the private API, such as the VPC's "
                "own or the runner's subnet; or name api_client_security_group_ids"
            )
        return value
