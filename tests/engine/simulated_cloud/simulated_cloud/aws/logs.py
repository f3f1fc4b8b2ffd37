"""CloudWatch log groups, and event rules."""

import json
from collections.abc import Iterable
from typing import Final

from ..inventory import Item
from ..models import AutoName, CloudError, Link, Problem
from ..rules import length, matches, one_of, one_required
from ..values import Properties, known
from ..world import World
from .kms import refuse_missing_key
from .model import ArnOf, AwsModel

LOG_GROUP: Final = "aws:cloudwatch/logGroup:LogGroup"
RETENTION_DAYS: Final = (
    0,
    1,
    3,
    5,
    7,
    14,
    30,
    60,
    90,
    120,
    150,
    180,
    365,
    400,
    545,
    731,
    1096,
    1827,
    2192,
    2557,
    2922,
    3288,
    3653,
)


class LogGroup(AwsModel):
    token = LOG_GROUP
    auto_name = AutoName("name", 512)
    rules = (
        length("name", 1, 512),
        matches("name", r"[.\-_/#A-Za-z0-9]+", "letters, digits and .-_/#"),
        one_of("retentionInDays", *RETENTION_DAYS),
        one_of("logGroupClass", "STANDARD", "INFREQUENT_ACCESS", "DELIVERY"),
    )
    arns = (ArnOf("kmsKeyId", "kms", "key/.+", here=True),)
    replace_on = frozenset({"name", "namePrefix", "logGroupClass"})
    defaults = {"retentionInDays": 0, "logGroupClass": "STANDARD", "skipDestroy": False}

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        refuse_missing_key(inputs.get("kmsKeyId"), "kmsKeyId", world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, "logs", f"log-group:{id}")}

    def blocks_delete(self, item: Item, world: World) -> str | None:
        if item["deletionProtectionEnabled"]:
            return f"InvalidOperationException: {item.id} has deletion protection"
        return None


def put_service_log_group(name: str, world: World) -> None:
    """A log group that a service makes for itself when there is none. Nothing deletes it."""
    if world.get(name, LOG_GROUP) is None:
        outputs = {
            "name": name,
            "arn": world.place.arn("logs", f"log-group:{name}"),
            "retentionInDays": 0,
        }
        world.inventory.put(
            Item(LOG_GROUP, world.place.scope("region"), name, name, {"name": name}, outputs)
        )


class EventRule(AwsModel):
    token = "aws:cloudwatch/eventRule:EventRule"
    auto_name = AutoName("name", 64)
    rules = (
        length("name", 1, 64),
        matches("name", r"[.\-_A-Za-z0-9]+", "letters, digits and .-_"),
        one_required("eventPattern", "scheduleExpression"),
        matches("scheduleExpression", r"(rate|cron)\(.+\)", "rate(...) or cron(...)"),
        one_of("state", "ENABLED", "DISABLED", "ENABLED_WITH_ALL_CLOUDTRAIL_MANAGEMENT_EVENTS"),
    )
    replace_on = frozenset({"name", "namePrefix", "eventBusName"})
    defaults = {"eventBusName": "default", "state": "ENABLED"}

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, text in known(inputs, "eventPattern"):
            try:
                json.loads(text)
            except ValueError as error:
                yield Problem(where, f"is not JSON ({error})")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, "events", f"rule/{id}")}

    def blocks_delete(self, item: Item, world: World) -> str | None:
        for target in world.find(EventTarget.token, rule=item.id):
            return (
                f"ValidationException: rule {item.id} can't be deleted since it has targets"
                f" ({target.id})"
            )
        return None


class EventTarget(AwsModel):
    token = "aws:cloudwatch/eventTarget:EventTarget"
    links = (
        Link("rule", EventRule.token, by=("id", "name"), not_found="ResourceNotFoundException"),
    )
    rules = (matches("arn", r"arn:aws.*:.+", "the ARN of a target"),)
    replace_on = frozenset({"rule", "eventBusName", "targetId"})

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"{inputs['rule']}-{inputs.get('targetId') or name}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"targetId": inputs.get("targetId") or id}


def refuse_missing_log_group(name: str, where: str, world: World) -> None:
    if world.get(name, LOG_GROUP) is None:
        raise CloudError("ValidationException", f"{where}: log group {name} does not exist")


MODELS = (LogGroup, EventRule, EventTarget)
