"""Instances of Aurora clusters."""

from collections.abc import Iterable
from typing import Any

from ...inventory import Item
from ...models import AutoName, CloudError, Link, Problem
from ...rules import between, length, matches, one_of, required_when
from ...values import Properties, known
from ...world import World
from ..kms import refuse_missing_key
from ..model import ArnOf, AwsModel, digest
from .clusters import CLUSTER, IDENTIFIER, IDENTIFIER_MEANING, INSTANCE


class ClusterInstance(AwsModel):
    token = INSTANCE
    auto_name = AutoName("identifier", 63, lower=True)
    rules = (
        length("identifier", 1, 63),
        matches("identifier", IDENTIFIER, IDENTIFIER_MEANING),
        matches(
            "instanceClass",
            r"db\.(serverless|[a-z0-9]+\.[a-z0-9]+)",
            "db.serverless or a class such as db.r8g.large",
        ),
        between("promotionTier", 0, 15),
        one_of("monitoringInterval", 0, 1, 5, 10, 15, 30, 60),
        one_of(
            "performanceInsightsRetentionPeriod", 7, 731, *(31 * months for months in range(1, 24))
        ),
        required_when("monitoringInterval", (1, 5, 10, 15, 30, 60), "monitoringRoleArn"),
    )
    arns = (
        ArnOf("monitoringRoleArn", "iam", "role/.+"),
        ArnOf("performanceInsightsKmsKeyId", "kms", "key/.+", here=True),
    )
    links = (
        Link("clusterIdentifier", CLUSTER, by=("id", "arn"), not_found="DBClusterNotFoundFault"),
    )
    replace_on = frozenset(
        {
            "identifier",
            "identifierPrefix",
            "clusterIdentifier",
            "engine",
            "availabilityZone",
            "dbSubnetGroupName",
        }
    )
    duplicate_code = "DBInstanceAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, zone in known(inputs, "availabilityZone"):
            if zone not in world.place.zones():
                yield Problem(where, f"{zone!r} is not a zone of {world.place.region}")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["identifier"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        cluster = world.get(inputs["clusterIdentifier"], CLUSTER)
        if cluster is None:
            return
        if inputs["engine"] != cluster["engine"]:
            raise CloudError(
                "InvalidParameterCombination",
                f"engine: {inputs['engine']} differs from {cluster['engine']} of {cluster.id}",
            )
        if (
            inputs["instanceClass"] == "db.serverless"
            and not cluster["serverlessv2ScalingConfiguration"]
        ):
            raise CloudError(
                "InvalidDBClusterStateFault",
                "instanceClass: db.serverless needs serverlessv2ScalingConfiguration on"
                f" {cluster.id}",
            )
        refuse_missing_key(
            inputs.get("performanceInsightsKmsKeyId"), "performanceInsightsKmsKeyId", world
        )

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        cluster = world.get(inputs["clusterIdentifier"], CLUSTER)
        others = [
            item
            for item in world.find(INSTANCE, clusterIdentifier=inputs["clusterIdentifier"])
            if item.id != id
        ]
        zones = world.place.zones()
        code = digest(world.place.account, world.place.region, length=12)
        own: dict[str, Any] = (
            {}
            if cluster is None
            else {
                "engineVersion": cluster["engineVersion"],
                "engineVersionActual": cluster["engineVersion"],
                "port": cluster["port"],
                "dbSubnetGroupName": cluster["dbSubnetGroupName"],
                "storageEncrypted": cluster["storageEncrypted"],
                "kmsKeyId": cluster["kmsKeyId"] or "",
            }
        )
        return {
            **own,
            "arn": self.arn_in(world, "rds", f"db:{id}"),
            "dbiResourceId": f"db-{digest(id, code, length=26).upper()}",
            "endpoint": f"{id}.{code}.{world.place.region}.rds.{world.place.dns_suffix}",
            "writer": not others,
            "availabilityZone": inputs.get("availabilityZone") or zones[len(others) % len(zones)],
            "networkType": "IPV4",
        }


MODELS = (ClusterInstance,)
