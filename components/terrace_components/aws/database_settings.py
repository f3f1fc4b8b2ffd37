"""The checked settings of an Aurora PostgreSQL cluster, and how many connections it takes."""

import re
from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from terrace_components.arguments import Arguments, Port
from terrace_components.aws.arguments import KeyArn, one_of, text_like
from terrace_components.aws.existing import made_here
from terrace_components.aws.flow_logs import RETENTION_DAYS

ENGINE_VERSION = "17.7"
PORT = 5432
MAX_CAPACITY = 8.0
# Below version 14 some minor versions have no serverless capacity; DatabaseRole needs 15's rules
# for the schema public.
OLDEST_MAJOR = 15
MOST_CAPACITY = 256
MOST_CONNECTIONS = 5000  # Aurora's own cap on its default
MOST_CONNECTIONS_WHEN_SMALL = 2000  # its cap with a minimum of 0 or 0.5 units
MOST_SETTABLE = 262143

# Aurora's published defaults of max_connections by the maximum capacity: the memory of so many
# units (2 GiB each) less what Aurora itself takes, over 9531392 bytes.
_PUBLISHED = ((1.0, 189), (4.0, 823), (8.0, 1669), (16.0, 3360))

SecurityGroupId = Annotated[
    Any, text_like(r"sg-[0-9a-f]{8,17}", "a security group's id such as sg-0a1b2c3d")
]
SecretArn = Annotated[
    Any,
    text_like(
        r"arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:\d{12}:secret:[\w/+=.@!-]+",
        "the ARN of a Secrets Manager secret",
    ),
]


def max_connections(min_capacity: float, max_capacity: float) -> int:
    """Connections that Aurora serverless v2 for PostgreSQL takes by default, by its capacity in
    Aurora units. Between published values the lower of what lies on the straight line; never more
    than AWS says.

    Source: Aurora user guide, "Maximum connections for Aurora serverless v2".
    """
    most = MOST_CONNECTIONS_WHEN_SMALL if min_capacity <= 0.5 else MOST_CONNECTIONS
    return max(1, min(_by_memory(max_capacity), most))


def settable_connections(min_capacity: float, max_capacity: float) -> int:
    """The most that may be set: as by default, without Aurora's cap on its default."""
    most = MOST_CONNECTIONS_WHEN_SMALL if min_capacity <= 0.5 else MOST_SETTABLE
    return max(1, min(_by_memory(max_capacity), most))


def _by_memory(max_capacity: float) -> int:
    line = pairwise(_PUBLISHED)
    segment = next(
        ((low, high) for low, high in line if max_capacity <= high[0]),
        (_PUBLISHED[-2], _PUBLISHED[-1]),
    )
    (units, connections), (more_units, more_connections) = segment
    slope = (more_connections - connections) / (more_units - units)
    return int(connections + slope * (max_capacity - units) + 1e-6)


def _capacity(value: float) -> float:
    if not 0.5 <= value <= MOST_CAPACITY or (value * 2) % 1:
        raise ValueError(
            f"must be 0.5 to {MOST_CAPACITY} Aurora units in steps of 0.5 (a unit is 2 GiB). "
            "0 would pause the database, and the gateway never leaves it alone long enough"
        )
    return value


def _engine(value: str) -> str:
    match = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", value)
    if match is None:
        raise ValueError(
            f"must be one minor version of Aurora PostgreSQL, such as {ENGINE_VERSION}"
        )
    if int(match[1]) < OLDEST_MAJOR:
        raise ValueError(f"must be PostgreSQL {OLDEST_MAJOR} or later")
    return value


def _host(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(
        r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", value
    ):
        raise ValueError("must be a host name, without a scheme and without a port")
    return value


# PostgreSQL's reserved key words (its manual, appendix C), and "db", which RDS refuses too.
RESERVED = frozenset({
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric",
    "authorization", "binary", "both", "case", "cast", "check", "collate", "collation", "column",
    "concurrently", "constraint", "create", "cross", "current_catalog", "current_date",
    "current_role", "current_schema", "current_time", "current_timestamp", "current_user", "db",
    "default", "deferrable", "desc", "distinct", "do", "else", "end", "except", "false", "fetch",
    "for", "foreign", "freeze", "from", "full", "grant", "group", "having", "ilike", "in",
    "initially", "inner", "intersect", "into", "is", "isnull", "join", "lateral", "leading",
    "left", "like", "limit", "localtime", "localtimestamp", "natural", "not", "notnull", "null",
    "offset", "on", "only", "or", "order", "outer", "overlaps", "placing", "primary",
    "references", "returning", "right", "select", "session_user", "similar", "some", "symmetric",
    "system_user", "table", "tablesample", "then", "to", "trailing", "true", "union", "unique",
    "user", "using", "variadic", "verbose", "when", "where", "window", "with",
})  # fmt: skip


def _identifier(value: str) -> str:
    if value in {"rdsadmin", "postgres", "template0", "template1"}:
        raise ValueError(f"must not be {value}, which PostgreSQL or Aurora has already")
    if value in RESERVED:
        raise ValueError(f"must not be {value}, a word that PostgreSQL or RDS reserves")
    return value


class ExistingDatabase(Arguments):
    """Checked ``ExistingDatabaseArgs``."""

    host: Annotated[str, AfterValidator(_host)]
    port: Port = PORT
    master_secret_arn: SecretArn
    master_secret_key_arn: KeyArn | None = None
    max_connections: Annotated[int, Field(ge=10, le=MOST_SETTABLE)]
    security_group_id: SecurityGroupId | None = None
    open_to_cluster: bool = False


class DatabaseSettings(Arguments):
    """What a person chooses about the database."""

    existing: ExistingDatabase | None = None
    engine_version: Annotated[str, AfterValidator(_engine)] = ENGINE_VERSION
    database_name: Annotated[
        str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$"), AfterValidator(_identifier)
    ] = "terrace"
    min_capacity: Annotated[float, AfterValidator(_capacity)] = 1.0
    max_capacity: Annotated[float, AfterValidator(_capacity)] | None = Field(
        default=None, validate_default=True
    )
    instances: Annotated[int, Field(ge=1, le=16)] = 2
    max_connections: Annotated[int, Field(ge=10, le=MOST_SETTABLE)] | None = None
    backup_days: Annotated[int, Field(ge=1, le=35)] = 14
    log_retention_days: Annotated[int, one_of(*RETENTION_DAYS)] = 90
    deletion_protection: bool = True
    final_snapshot: bool | None = Field(default=None, validate_default=True)

    made = field_validator(
        "engine_version",
        "database_name",
        "min_capacity",
        "instances",
        "max_connections",
        "backup_days",
        "log_retention_days",
        "deletion_protection",
    )(made_here)

    @field_validator("existing")
    @classmethod
    def somebody_lets_the_clients_in(
        cls, value: ExistingDatabase | None
    ) -> ExistingDatabase | None:
        if value is not None and (value.security_group_id is None) == (not value.open_to_cluster):
            raise ValueError(
                "must say how clients get in: security_group_id (rules are added to it), or "
                "open_to_cluster: true (its own rules do already); one of the two"
            )
        return value

    @field_validator("max_capacity")
    @classmethod
    def not_below_the_least(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None:
            made_here(value, info)
        least = info.data.get("min_capacity", 0.5)
        if value is None:
            return max(MAX_CAPACITY, least)
        if value < least or value < 1:
            raise ValueError(f"must be at least 1 and at least min_capacity, {least:g}")
        return value

    @field_validator("max_connections")
    @classmethod
    def what_memory_takes(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is None or not {"min_capacity", "max_capacity"} <= info.data.keys():
            return value
        least, most = info.data["min_capacity"], info.data["max_capacity"] or MAX_CAPACITY
        taken = settable_connections(least, most)
        if value > taken:
            raise ValueError(
                f"must be at most {taken}, what {least:g} to {most:g} Aurora units take; "
                "for more raise max_capacity (and min_capacity above 0.5)"
            )
        return value

    @field_validator("final_snapshot")
    @classmethod
    def nothing_lost_by_accident(cls, value: bool | None, info: ValidationInfo) -> bool:
        if value is not None:
            made_here(value, info)
        if value is False and info.data.get("deletion_protection"):
            raise ValueError(
                "can be false only with deletion_protection: false; both are for stacks whose data "
                "nobody will miss"
            )
        return value is not False

    @property
    def connections(self) -> int:
        """Connections the database takes."""
        if self.existing is not None:
            return self.existing.max_connections
        if self.max_connections is not None:
            return self.max_connections
        return max_connections(self.min_capacity, self.max_capacity or MAX_CAPACITY)
