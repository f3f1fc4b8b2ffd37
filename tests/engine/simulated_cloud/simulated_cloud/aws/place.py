"""An account and region, and the ARNs in them."""

import re
from dataclasses import dataclass
from typing import Final

REGIONS: Final = (
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ca-central-1",
    "sa-east-1",
    "eu-central-1",
    "eu-central-2",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "eu-north-1",
    "eu-south-1",
    "eu-south-2",
    "ap-south-1",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-northeast-3",
    "ap-southeast-1",
    "ap-southeast-2",
    "ap-southeast-3",
    "ap-southeast-4",
    "ap-east-1",
    "me-central-1",
    "me-south-1",
    "af-south-1",
    "il-central-1",
    "us-gov-west-1",
    "us-gov-east-1",
    "cn-north-1",
    "cn-northwest-1",
)
"""The regions that exist here."""

_ARN: Final = re.compile(
    r"arn:(aws|aws-cn|aws-us-gov):([a-z0-9-]+):([a-z0-9-]*):(\d{12}|aws|):(.+)"
)


def partition_of(region: str) -> str:
    """`aws`, `aws-cn` or `aws-us-gov`."""
    return {"cn": "aws-cn", "us-gov": "aws-us-gov"}.get(re.sub(r"-[a-z]+-\d$", "", region), "aws")


@dataclass(frozen=True)
class AwsPlace:
    """Where an AWS provider works."""

    account: str
    region: str

    @property
    def partition(self) -> str:
        return partition_of(self.region)

    @property
    def dns_suffix(self) -> str:
        return "amazonaws.com.cn" if self.partition == "aws-cn" else "amazonaws.com"

    def scope(self, level: str) -> str:
        """`region`: ids are unique in account and region; `account`: in the account; `partition`:
        everywhere."""
        return {
            "region": f"{self.account}/{self.region}",
            "account": self.account,
            "partition": self.partition,
        }[level]

    def visible(self) -> tuple[str, ...]:
        return (self.scope("region"), self.scope("account"), self.scope("partition"))

    def arn(self, service: str, resource: str, *, region: bool = True, account: bool = True) -> str:
        """`arn:<partition>:<service>:<region>:<account>:<resource>`; the two flags blank out their
        part."""
        return ":".join(
            (
                "arn",
                self.partition,
                service,
                self.region if region else "",
                self.account if account else "",
                resource,
            )
        )

    def zones(self) -> list[str]:
        """Availability zones of the region."""
        letters = (
            "abcdef"
            if self.region == "us-east-1"
            else "ab"
            if self.region == "us-west-1"
            else "abc"
        )
        return [f"{self.region}{letter}" for letter in letters]


@dataclass(frozen=True)
class Arn:
    """The parts of an ARN."""

    partition: str
    service: str
    region: str
    account: str
    resource: str


def parse_arn(text: str) -> Arn | None:
    """The parts of `text`, or None when it is not an ARN."""
    found = _ARN.fullmatch(text)
    return Arn(*found.groups()) if found else None
