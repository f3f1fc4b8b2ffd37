"""Types of arguments that several AWS components have: ids, ARNs, tags, address ranges.

A value that another resource makes is an output and is checked by AWS; plain text is checked here.
"""

import ipaddress
import re
import unicodedata
from collections.abc import Callable
from typing import Annotated, Any, cast

import pulumi
from pydantic import AfterValidator, PlainValidator

MOST_TAGS = 45  # of AWS's 50 per resource; the rest is ours


def text_like(pattern: str, what: str) -> PlainValidator:
    """Checks plain text against ``pattern`` and lets outputs through; ``what`` says what would be
    valid."""
    compiled = re.compile(pattern)

    def check(value: Any) -> str | pulumi.Output[str]:
        if isinstance(value, pulumi.Output):
            return cast(pulumi.Output[str], value)
        if isinstance(value, str) and compiled.fullmatch(value):
            return value
        raise ValueError(f"must be {what}")

    return PlainValidator(check)


def list_of(
    pattern: str, what: str, at_least: int, *, known_length: bool = False
) -> PlainValidator:
    """As ``text_like``, for a list of different texts, or an output of one unless how many there
    are must be known (``known_length``)."""
    compiled = re.compile(pattern)

    def check(value: Any) -> Any:
        if isinstance(value, pulumi.Output) and not known_length:
            return cast(pulumi.Output[list[str]], value)
        if not isinstance(value, list | tuple):
            raise ValueError(f"must be a list, each {what}")  # noqa: TRY004  for pydantic
        items = cast(list[Any], list(value))  # pyright: ignore[reportUnknownArgumentType]
        texts = [item for item in items if not isinstance(item, pulumi.Output)]
        for text in texts:
            if not isinstance(text, str) or not compiled.fullmatch(text):
                raise ValueError(f"must be a list, each {what}; not {text!r}")
        if len(set(texts)) < len(texts):
            raise ValueError("must name each once")
        if len(items) < at_least:
            raise ValueError(f"must have at least {at_least}, each {what}")
        return items

    return PlainValidator(check)


def one_of(*values: str | int) -> AfterValidator:
    """One of ``values``, which an error lists."""

    def check(value: Any) -> Any:
        if value not in values:
            raise ValueError(f"must be one of {', '.join(str(v) for v in values)}")
        return value

    return AfterValidator(check)


def _tags(value: dict[str, str]) -> dict[str, str]:
    for key, text in value.items():
        if not 1 <= len(key) <= 128 or key.lower().startswith("aws:"):
            raise ValueError("keys must have 1 to 128 characters and not begin with aws:")
        if len(text) > 256:
            raise ValueError(f"the value of {key} must have at most 256 characters")
        for character in key + text:
            # Letters, separators (spaces) and digits of any script, as AWS says.
            if unicodedata.category(character)[0] not in "LZN" and character not in "_.:/=+-@":
                raise ValueError(
                    f"{key} has {character!r}: keys and values may have letters, digits, spaces "
                    "and _ . : / = + - @"
                )
    if len(value) > MOST_TAGS:
        raise ValueError(f"must be at most {MOST_TAGS} tags")
    return value


def _network(value: str) -> str:
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError("must be an address range such as 10.20.0.0/16") from None
    if network.version != 4:
        raise ValueError("must be an IPv4 address range such as 10.20.0.0/16")
    if str(network) != value:
        raise ValueError(f"must be written by its first address and prefix: {network}")
    return value


def domain_name(value: str) -> str:
    """A DNS name of at least two labels, in lower case and without a dot at its end."""
    if len(value) > 253 or not re.fullmatch(rf"({_LABEL}\.)+{_LABEL}", value):
        raise ValueError("must be a domain name in lower case such as models.example.com")
    return value


def _network_like(value: Any) -> str | pulumi.Output[str]:
    if isinstance(value, pulumi.Output):
        return cast(pulumi.Output[str], value)
    if not isinstance(value, str):
        raise ValueError("must be an address range such as 10.20.0.0/16")  # noqa: TRY004
    return _network(value)


def _once(values: list[str]) -> list[str]:
    if len(set(values)) < len(values):
        raise ValueError("must name each once")
    return values


_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_ARN = "arn:aws[a-z-]*"
SUBNET_ID = r"subnet-[0-9a-f]{8,17}"
SUBNET_ID_TEXT = "a subnet's id such as subnet-0a1b2c3d"

Tags = Annotated[dict[str, str], AfterValidator(_tags)]
Ipv4Range = Annotated[str, AfterValidator(_network)]
"""An IPv4 address range in its canonical form."""
Ipv4Input = Annotated[str | pulumi.Output[str], PlainValidator(_network_like)]
"""The same, or an output of one."""
Different = AfterValidator(cast(Callable[[Any], Any], _once))
"""For a list of texts: none twice."""

VpcId = Annotated[
    str | pulumi.Output[str], text_like(r"vpc-[0-9a-f]{8,17}", "a VPC's id such as vpc-0a1b2c3d")
]
Texts = list[str | pulumi.Output[str]]
SubnetIds = Annotated[Texts | pulumi.Output[list[str]], list_of(SUBNET_ID, SUBNET_ID_TEXT, 1)]
"""At least one subnet."""
TwoSubnetIds = Annotated[Texts | pulumi.Output[list[str]], list_of(SUBNET_ID, SUBNET_ID_TEXT, 2)]
"""At least two subnets, as EKS, Aurora and load balancers ask for."""
KeyArn = Annotated[
    str | pulumi.Output[str],
    text_like(
        rf"{_ARN}:kms:[a-z0-9-]+:\d{{12}}:key/[0-9a-zA-Z-]+",
        "the ARN of a KMS key (not of an alias): arn:<partition>:kms:<region>:<account>:key/<id>",
    ),
]
CertificateArn = Annotated[
    str | pulumi.Output[str],
    text_like(
        rf"{_ARN}:acm:[a-z0-9-]+:\d{{12}}:certificate/[0-9a-zA-Z-]+",
        "the ARN of a certificate: arn:<partition>:acm:<region>:<account>:certificate/<id>",
    ),
]
ZoneId = Annotated[
    str | pulumi.Output[str],
    text_like(r"Z[0-9A-Z]{3,31}", "Route 53's id of a zone such as Z0123456789ABC"),
]
