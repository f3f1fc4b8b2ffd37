"""Buckets and objects. Bucket names are unique in a partition, across accounts and regions."""

import re
from typing import Final

from ...inventory import Item
from ...models import AutoName, CloudError, Link
from ...rules import each, length, one_of, only_one
from ...values import Properties
from ...world import World
from ..model import AwsModel, digest

BUCKET: Final = "aws:s3/bucket:Bucket"
OBJECT: Final = "aws:s3/bucketObjectv2:BucketObjectv2"
LOCK: Final = "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration"
_HOSTED_ZONES: Final = {
    "us-east-1": "Z3AQBSTGFJSTF",
    "us-east-2": "Z2O1EMRO9K5GLX",
    "us-west-2": "Z3BJ6K6RIION7M",
    "eu-central-1": "Z21DNDUVLTQW6Q",
    "eu-west-1": "Z1BKCTXD74EZPE",
}


def _bad_name(name: str) -> str | None:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", name):
        return (
            f"{name!r} must have 3 to 63 lower-case letters, digits, hyphens and dots, and begin"
            " and end with a letter or digit"
        )
    if ".." in name or re.fullmatch(r"\d+(\.\d+){3}", name):
        return f"{name!r} must not have two dots in a row or look like an IP address"
    if name.startswith(("xn--", "sthree-", "amzn-s3-demo-")) or name.endswith(
        ("-s3alias", "--ol-s3", "--x-s3")
    ):
        return f"{name!r} has a prefix or suffix that AWS keeps for itself"
    return None


class Bucket(AwsModel):
    token = BUCKET
    level = "partition"
    auto_name = AutoName("bucket", 63, lower=True)
    rules = (
        each("bucket", lambda name: _bad_name(str(name))),
        length("bucketPrefix", 1, 37),
        only_one("bucket", "bucketPrefix"),
        one_of(
            "acl",
            "private",
            "public-read",
            "public-read-write",
            "aws-exec-read",
            "authenticated-read",
            "bucket-owner-read",
            "bucket-owner-full-control",
            "log-delivery-write",
        ),
    )
    replace_on = frozenset({"bucket", "bucketPrefix", "objectLockEnabled", "region"})
    defaults = {"forceDestroy": False, "objectLockEnabled": False, "requestPayer": "BucketOwner"}

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(
            inputs.get("bucket")
            or f"{inputs['bucketPrefix']}{digest(name, world.place.account, length=26)}"
        )

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        if existing is None:
            for other in world.inventory.items(type=self.token, id=str(inputs.get("bucket"))):
                mine = other["__account"] == world.place.account
                raise CloudError(
                    "BucketAlreadyOwnedByYou" if mine else "BucketAlreadyExists",
                    f"the bucket name {other.id} is not available",
                )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        region, suffix = world.place.region, world.place.dns_suffix
        return {
            "__account": world.place.account,
            "bucket": id,
            "arn": f"arn:{world.place.partition}:s3:::{id}",
            "bucketDomainName": f"{id}.s3.{suffix}",
            "bucketRegionalDomainName": f"{id}.s3.{region}.{suffix}",
            "bucketRegion": region,
            "hostedZoneId": _HOSTED_ZONES.get(region, "Z3AQBSTGFJSTF"),
            "websiteDomain": "",
            "websiteEndpoint": "",
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        objects = world.find(OBJECT, bucket=item.id)
        if not objects:
            return None
        locked = item["objectLockEnabled"] or world.get(item.id, LOCK)
        if locked:
            return (
                f"AccessDenied: {item.id} has {len(objects)} objects under Object Lock; they cannot"
                " be deleted before their retention ends"
            )
        if not item["forceDestroy"]:
            return (
                f"BucketNotEmpty: the bucket you tried to delete is not empty ({item.id},"
                f" {len(objects)} objects)"
            )
        return None

    def deleted(self, item: Item, world: World) -> None:
        for other in world.all():
            if other.type.startswith("aws:s3/bucket") and other["bucket"] == item.id:
                world.inventory.remove(other)


class BucketObject(AwsModel):
    token = OBJECT
    level = "partition"
    rules = (length("key", 1, 1024), only_one("content", "contentBase64", "source"))
    links = (Link("bucket", BUCKET, not_found="NoSuchBucket"),)
    replace_on = frozenset({"bucket", "key"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['bucket']}/{inputs.get('key') or name}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {
            "key": inputs.get("key") or id.split("/", 1)[1],
            "arn": f"arn:{world.place.partition}:s3:::{id}",
            "etag": digest(id, length=32),
            "versionId": digest(id, "v", length=32),
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        bucket = world.get(item["bucket"], BUCKET)
        if (
            bucket
            and (bucket["objectLockEnabled"] or world.get(bucket.id, LOCK))
            and not item["forceDestroy"]
        ):
            return f"AccessDenied: {item.id} is under Object Lock"
        return None


def get_bucket(arguments: Properties, world: World) -> Properties:
    item = world.get(arguments["bucket"], BUCKET)
    if item is None or item["__account"] != world.place.account:
        raise CloudError("NotFound", f"bucket {arguments['bucket']} does not exist")
    return {
        **{key: value for key, value in item.outputs.items() if not key.startswith("__")},
        "id": item.id,
    }


MODELS = (Bucket, BucketObject)
FUNCTIONS = {"aws:s3/getBucket:getBucket": get_bucket}
