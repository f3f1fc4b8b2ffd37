"""A simulated account for Pulumi mocks: answers to data sources, computed outputs."""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pulumi.runtime import mocks as pulumi_mocks

ACCOUNT = "123456789012"
REGION = "eu-west-1"
PARTITION = "aws"
ZONES = [f"{REGION}{letter}" for letter in "abcd"]

Answer = dict[str, Any] | Callable[[dict[str, Any]], dict[str, Any]]


def _hex(name: str, digits: int = 17) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:digits]


# Ids of the shapes that AWS gives, so that a component may check what another one made.
ID_PREFIXES = {
    "aws:ec2/vpc:Vpc": "vpc-",
    "aws:ec2/subnet:Subnet": "subnet-",
    "aws:ec2/securityGroup:SecurityGroup": "sg-",
    "aws:ec2/routeTable:RouteTable": "rtb-",
    "aws:ec2/natGateway:NatGateway": "nat-",
    "aws:ec2/internetGateway:InternetGateway": "igw-",
    "aws:ec2/eip:Eip": "eipalloc-",
    "aws:ec2/vpcEndpoint:VpcEndpoint": "vpce-",
}


def _path(token: str, name: str) -> str:
    """What follows region and account in the ARN of a resource."""
    kind = token.rpartition(":")[2].lower()
    digest = _hex(name, 32)
    paths = {
        "key": f"key/{digest[:8]}-{digest[8:12]}-4000-8000-{digest[12:24]}",
        "certificate": f"certificate/{digest}",
        "loadbalancer": f"loadbalancer/app/{name}/{digest[:16]}",
        "targetgroup": f"targetgroup/{name}/{digest[:16]}",
        "listener": f"listener/app/{name}/{digest[:16]}/{digest[16:]}",
        "loggroup": f"log-group:{name}",
        "secret": f"secret:{name}-{digest[:6]}",
        "webacl": f"regional/webacl/{name}/{digest[:8]}",
    }
    return paths.get(kind, f"{kind}/{name}")


def arn(token: str, name: str) -> str:
    """An ARN with the right service, partition, region and account."""
    module = token.split(":")[1].split("/", maxsplit=1)[0]
    service = {"lb": "elasticloadbalancing", "cloudwatch": "logs"}.get(module, module)
    if service == "s3":
        return f"arn:{PARTITION}:s3:::{name}"
    where = f"iam::{ACCOUNT}" if service == "iam" else f"{service}:{REGION}:{ACCOUNT}"
    return f"arn:{PARTITION}:{where}:{_path(token, name)}"


@dataclass
class Cloud:
    """What the simulated account answers, and what it was asked."""

    answers: dict[str, Answer] = field(default_factory=dict)
    outputs: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = field(
        default_factory=dict
    )
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def answer(self, token: str, args: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((token, args))
        assert token in self.answers, f"no answer for the data source {token}: {args}"
        given = self.answers[token]
        return given(args) if callable(given) else given

    def set_subnets(self, vpc_id: str, subnets: dict[str, tuple[str, str]]) -> None:
        """Existing subnets of one VPC: id -> (zone, CIDR)."""
        known = {
            subnet: {
                "id": subnet,
                "vpcId": vpc_id,
                "availabilityZone": zone,
                "cidrBlock": cidr,
                "arn": f"arn:{PARTITION}:ec2:{REGION}:{ACCOUNT}:subnet/{subnet}",
                "tags": {},
            }
            for subnet, (zone, cidr) in subnets.items()
        }
        before = self.answers.get("aws:ec2/getSubnet:getSubnet")

        def find(args: dict[str, Any]) -> dict[str, Any]:
            if args["id"] in known:
                return known[args["id"]]
            assert callable(before), f"no such subnet: {args['id']}"
            return before(args)

        self.answers["aws:ec2/getSubnet:getSubnet"] = find


def account() -> Cloud:
    """An account that answers what nearly every component asks."""
    return Cloud(
        answers={
            "aws:index/getPartition:getPartition": {
                "id": PARTITION,
                "partition": PARTITION,
                "dnsSuffix": "amazonaws.com",
                "reverseDnsPrefix": "com.amazonaws",
            },
            "aws:index/getRegion:getRegion": {"id": REGION, "name": REGION, "region": REGION},
            "aws:index/getCallerIdentity:getCallerIdentity": {
                "id": ACCOUNT,
                "accountId": ACCOUNT,
                "arn": f"arn:{PARTITION}:iam::{ACCOUNT}:role/deployer",
                "userId": "AROA0000000000000",
            },
            "aws:index/getAvailabilityZones:getAvailabilityZones": {
                "id": REGION,
                "names": ZONES,
                "zoneIds": [f"euw1-az{n}" for n in range(1, 5)],
            },
        }
    )


class AwsRecorder(pulumi_mocks.Mocks):
    """Echoes inputs and adds what AWS computes: id, arn, physical name, ..."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self.registered: dict[tuple[str, str], pulumi_mocks.MockResourceArgs] = {}

    def new_resource(self, args: pulumi_mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        key = (args.typ, args.name)
        assert key not in self.registered, f"two resources have the name {key}"
        self.registered[key] = args
        more = self.cloud.outputs.get(args.typ)
        if not args.typ.startswith("aws:"):
            computed = {} if more is None else more(args.name, args.inputs)
            return f"{args.name}-id", {**args.inputs, **computed}
        # As the engine names it: the name of the resource and seven hex digits.
        physical = args.inputs.get("name", f"{args.name}-{_hex(args.name, 7)}")
        outputs = {"name": physical, "arn": arn(args.typ, physical), **args.inputs}
        prefix = ID_PREFIXES.get(args.typ)
        identity = f"{prefix}{_hex(args.name)}" if prefix else physical
        if args.typ.startswith("aws:s3/bucket:"):
            outputs.setdefault("bucket", physical)
            outputs["bucketDomainName"] = f"{physical}.s3.amazonaws.com"
        if args.typ == "aws:kms/key:Key":
            identity = outputs["arn"].rpartition("/")[2]
            outputs["keyId"] = identity
        if args.typ == "aws:ecr/repository:Repository":
            outputs["repositoryUrl"] = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{physical}"
        if args.typ in {"aws:lb/loadBalancer:LoadBalancer", "aws:lb/targetGroup:TargetGroup"}:
            identity = outputs["arn"]
            outputs["dnsName"] = f"internal-{physical}.{REGION}.elb.amazonaws.com"
            outputs["zoneId"] = "Z32O12XQLNTSW2"
            outputs["arnSuffix"] = outputs["arn"].rpartition("loadbalancer/")[2]
        if args.typ == "aws:route53/zone:Zone":
            identity = f"Z{_hex(args.name, 13).upper()}"
            outputs["zoneId"] = identity
            outputs["nameServers"] = [f"ns-{n}.example.net" for n in range(4)]
        if args.typ == "aws:acm/certificate:Certificate":
            identity = outputs["arn"]
            outputs["domainValidationOptions"] = [
                {
                    "domainName": domain,
                    "resourceRecordName": f"_{_hex(domain, 8)}.{domain.removeprefix('*.')}.",
                    "resourceRecordType": "CNAME",
                    "resourceRecordValue": f"_{_hex(domain, 9)}.acm-validations.aws.",
                }
                for domain in [
                    args.inputs["domainName"],
                    *args.inputs.get("subjectAlternativeNames", []),
                ]
            ]
        if more is not None:
            outputs |= more(physical, args.inputs)
        return identity, outputs

    def call(self, args: pulumi_mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        return self.cloud.answer(args.token, dict(args.args)), []


def documents(graph: Any) -> Iterable[dict[str, Any]]:
    """Every policy document of the graph."""
    for resource in graph.resources:
        for key in ("policy", "assumeRolePolicy", "inlinePolicy"):
            text = resource.inputs.get(key)
            if isinstance(text, str) and text.startswith("{"):
                document = json.loads(text)
                if "Statement" in document:
                    yield document
