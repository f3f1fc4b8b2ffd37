"""Route 53 zones and records."""

import ipaddress
import secrets
from collections.abc import Iterable
from typing import Any, Final

from ..inventory import Item
from ..models import CloudError, Link, Problem
from ..rules import between, length, matches, one_of
from ..values import UNKNOWN, Properties, known
from ..world import World
from .elb.load_balancers import HOSTED_ZONES, LOAD_BALANCER
from .model import AwsModel, digest

ZONE: Final = "aws:route53/zone:Zone"
RECORD: Final = "aws:route53/record:Record"
_NAME = r"(\*\.)?([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.?"


class Zone(AwsModel):
    token = ZONE
    level = "account"
    rules = (length("name", 1, 1024), matches("name", _NAME, "a domain name in lower case"))
    replace_on = frozenset({"name", "delegationSetId"})
    defaults = {"comment": "Managed by Pulumi", "forceDestroy": False}

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"Z{secrets.token_hex(10).upper()}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        servers = [
            f"ns-{int(digest(id, end, length=3), 16) % 512 + 512 * index}.awsdns-{10 + index}.{end}"
            for index, end in enumerate(("com", "net", "org", "co.uk"))
        ]
        return {
            "zoneId": id,
            "arn": f"arn:{world.place.partition}:route53:::hostedzone/{id}",
            "name": str(inputs.get("name", "")).rstrip("."),
            "nameServers": servers,
            "primaryNameServer": servers[0],
            "vpcs": inputs.get("vpcs") or [],
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        records = world.find(RECORD, zoneId=item.id)
        if records and not item["forceDestroy"]:
            return (
                "HostedZoneNotEmpty: the specified hosted zone contains non-required resource"
                f" record sets ({records[0].id})"
            )
        return None


class Record(AwsModel):
    token = RECORD
    level = "account"
    rules = (
        one_of(
            "type",
            "A",
            "AAAA",
            "CNAME",
            "CAA",
            "MX",
            "NAPTR",
            "NS",
            "PTR",
            "SOA",
            "SPF",
            "SRV",
            "TXT",
            "DS",
            "HTTPS",
            "SSHFP",
            "SVCB",
            "TLSA",
        ),
        between("ttl", 0, 2147483647),
    )
    links = (Link("zoneId", ZONE, not_found="NoSuchHostedZone"),)
    replace_on = frozenset({"zoneId", "name", "type", "setIdentifier"})
    defaults = {"allowOverwrite": False}
    duplicate_code = "InvalidChangeBatch"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        alias, records = inputs.get("aliases"), inputs.get("records")
        if (alias is None) == (records is None):
            yield Problem("records", "exactly one of records and aliases is required")
        if records is not None and inputs.get("ttl") is None:
            yield Problem("ttl", "is required with records")
        if alias is not None and inputs.get("ttl") is not None:
            yield Problem("ttl", "is not allowed with aliases")
        family = {"A": ipaddress.IPv4Address, "AAAA": ipaddress.IPv6Address}.get(
            str(inputs.get("type"))
        )
        for where, value in known(inputs, "records[]"):
            if family is not None and not _is(family, value):
                yield Problem(
                    where, f"{value!r} is not an address for a record of type {inputs['type']}"
                )
        if (
            inputs.get("type") == "CNAME"
            and isinstance(records, list)
            and records is not UNKNOWN
            and len(records) > 1
        ):
            yield Problem("records", "a CNAME has one value")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        suffix = f"_{inputs['setIdentifier']}" if inputs.get("setIdentifier") else ""
        return f"{inputs['zoneId']}_{_full_name(inputs, world)}_{inputs['type']}{suffix}"

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        zone = world.get(inputs["zoneId"], ZONE)
        full = _full_name(inputs, world)
        if zone and inputs["type"] == "CNAME" and full == zone["name"]:
            raise CloudError(
                "InvalidChangeBatch",
                f"RRSet of type CNAME with DNS name {full}. is not permitted at apex in zone"
                f" {zone['name']}.",
            )
        for other in world.find(RECORD, zoneId=inputs["zoneId"]):
            same = other["fqdn"] == full and (existing is None or other.id != existing.id)
            if (
                same
                and "CNAME" in (inputs["type"], other["type"])
                and inputs["type"] != other["type"]
            ):
                raise CloudError(
                    "InvalidChangeBatch",
                    f"RRSet of type {inputs['type']} with DNS name {full}. conflicts with"
                    f" {other['type']} of the same name",
                )
        for where, alias in known(inputs, "aliases[]"):
            balancers = [
                item
                for item in world.all(LOAD_BALANCER)
                if item["dnsName"] == str(alias["name"]).removeprefix("dualstack.")
            ]
            if alias["zoneId"] in HOSTED_ZONES.values() and not balancers:
                raise CloudError(
                    "InvalidChangeBatch",
                    f"{where}: tried to create an alias that targets {alias['name']}, but the alias"
                    " target name was not found",
                )
            if balancers and alias["zoneId"] != balancers[0]["zoneId"]:
                raise CloudError(
                    "InvalidChangeBatch",
                    f"{where}.zoneId: {alias['zoneId']} is not the zone of {alias['name']}"
                    f" ({balancers[0]['zoneId']})",
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"fqdn": _full_name(inputs, world)}


def _full_name(inputs: Properties, world: World) -> str:
    """The name with its zone, as the provider completes it."""
    zone = world.get(inputs["zoneId"], ZONE)
    name = str(inputs["name"]).rstrip(".").lower()
    if zone is None or name == zone["name"] or name.endswith(f".{zone['name']}"):
        return name
    return f"{name}.{zone['name']}" if name else str(zone["name"])


def _is(family: Any, value: Any) -> bool:
    try:
        family(value)
    except ValueError:
        return False
    return True


def get_zone(arguments: Properties, world: World) -> Properties:
    name = str(arguments.get("name") or "").rstrip(".")
    private = bool(arguments.get("privateZone"))
    found = [
        item
        for item in world.all(ZONE)
        if item.id == arguments.get("zoneId")
        or (name and item["name"] == name and bool(item["vpcs"]) == private)
    ]
    if len(found) != 1:
        what = arguments.get("zoneId") or name
        raise CloudError(
            "NoSuchHostedZone",
            f"{'no' if not found else 'more than one'} matching Route 53 hosted zone found: {what}",
        )
    item = found[0]
    return {
        **arguments,
        "id": item.id,
        "zoneId": item.id,
        "arn": item.arn,
        "name": item["name"],
        "comment": item["comment"],
        "nameServers": item["nameServers"],
        "primaryNameServer": item["primaryNameServer"],
        "privateZone": bool(item["vpcs"]),
        "callerReference": "simulated",
        "resourceRecordSetCount": 2 + len(world.find(RECORD, zoneId=item.id)),
        "linkedServiceDescription": "",
        "linkedServicePrincipal": "",
        "tags": item["tags"] or {},
        "enableAcceleratedRecovery": False,
    }


MODELS = (Zone, Record)
FUNCTIONS = {"aws:route53/getZone:getZone": get_zone}
