"""Look-ups about the account and region, and parameters of Systems Manager."""

import json
import os
import re
from typing import Final

from ..models import CloudError
from ..rules import length, matches, one_of
from ..values import Properties
from ..world import World
from .model import AwsModel, digest
from .place import parse_arn

_NAMES: Final = {
    "us-east-1": "US East (N. Virginia)",
    "us-west-2": "US West (Oregon)",
    "eu-central-1": "Europe (Frankfurt)",
}
CALLER_VARIABLE: Final = "SIMULATED_CLOUD_CALLER"
"""Name of the role that whoever calls has taken; default ``simulated-cloud``."""
_AMI: Final = re.compile(
    r"/aws/service/eks/optimized-ami/(\d\.\d+)/(amazon-linux-2023|bottlerocket)/([\w./-]+)"
)
_RELEASE: Final = "20260923"


def caller() -> str:
    """Name of the caller's role."""
    return os.environ.get(CALLER_VARIABLE) or "simulated-cloud"


def get_partition(arguments: Properties, world: World) -> Properties:
    del arguments
    partition = world.place.partition
    suffix = world.place.dns_suffix
    return {
        "id": partition,
        "partition": partition,
        "dnsSuffix": suffix,
        "reverseDnsPrefix": ".".join(reversed(suffix.split("."))),
    }


def get_region(arguments: Properties, world: World) -> Properties:
    region = world.place.region
    return {
        **arguments,
        "id": region,
        "name": region,
        "region": region,
        "description": _NAMES.get(region, region),
        "endpoint": f"ec2.{region}.{world.place.dns_suffix}",
    }


def get_caller_identity(arguments: Properties, world: World) -> Properties:
    del arguments
    account = world.place.account
    return {
        "id": account,
        "accountId": account,
        "userId": f"AROA{digest(account, length=17).upper()}:simulated",
        "arn": f"arn:{world.place.partition}:sts::{account}:assumed-role/{caller()}/simulated",
    }


def get_arn(arguments: Properties, world: World) -> Properties:
    del world
    arn = parse_arn(str(arguments["arn"]))
    if arn is None:
        raise CloudError("InvalidArn", f"{arguments['arn']!r} is not an ARN")
    return {
        **arguments,
        "id": arguments["arn"],
        "partition": arn.partition,
        "service": arn.service,
        "region": arn.region,
        "account": arn.account,
        "resource": arn.resource,
    }


def get_service_principal(arguments: Properties, world: World) -> Properties:
    name = f"{arguments['serviceName']}.amazonaws.com"
    return {
        **arguments,
        "id": name,
        "name": name,
        "suffix": "amazonaws.com",
        "region": world.place.region,
    }


def get_default_tags(arguments: Properties, world: World) -> Properties:
    del arguments, world
    return {"id": "aws", "tags": {}}


def get_parameter(arguments: Properties, world: World) -> Properties:
    """A parameter of the account, or one of the public AMI parameters of EKS."""
    name = str(arguments["name"])
    found = world.get(name, Parameter.token)
    value = found["value"] if found else _public_parameter(name)
    if value is None:
        raise CloudError("ParameterNotFound", f"couldn't find resource: SSM parameter {name}")
    return {
        **arguments,
        "id": name,
        "name": name,
        "value": value,
        "insecureValue": value,
        "version": 1,
        "type": found["type"] if found else "String",
        "arn": world.place.arn("ssm", f"parameter{name}", account=bool(found)),
        "region": world.place.region,
    }


def _public_parameter(name: str) -> str | None:
    found = _AMI.fullmatch(name)
    if found is None:
        return None
    version = found[1]
    if name.endswith("/release_version"):
        return f"{version}.4-{_RELEASE}"
    if name.endswith("/image_id"):
        return f"ami-{digest(name, length=17)}"
    if name.endswith("/recommended"):
        image = {
            "image_id": f"ami-{digest(name, length=17)}",
            "release_version": f"{version}.4-{_RELEASE}",
        }
        return json.dumps(image)
    return None


class Parameter(AwsModel):
    token = "aws:ssm/parameter:Parameter"
    rules = (
        length("name", 1, 1011),
        matches(
            "name",
            r"(?!/?(aws|ssm))[\w./-]+",
            "letters, digits and _.-/, not starting with aws or ssm",
        ),
        one_of("type", "String", "StringList", "SecureString"),
        one_of("tier", "Standard", "Advanced", "Intelligent-Tiering"),
    )
    replace_on = frozenset({"name"})
    duplicate_code = "ParameterAlreadyExists"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs.get("name") or name)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "name": id,
            "arn": self.arn_in(world, "ssm", f"parameter/{id.lstrip('/')}"),
            "version": 1,
        }


MODELS = (Parameter,)
FUNCTIONS = {
    "aws:index/getPartition:getPartition": get_partition,
    "aws:index/getRegion:getRegion": get_region,
    "aws:index/getCallerIdentity:getCallerIdentity": get_caller_identity,
    "aws:index/getArn:getArn": get_arn,
    "aws:index/getServicePrincipal:getServicePrincipal": get_service_principal,
    "aws:index/getDefaultTags:getDefaultTags": get_default_tags,
    "aws:ssm/getParameter:getParameter": get_parameter,
}
