"""SQS queues."""

from collections.abc import Iterable

from ..models import AutoName, Problem
from ..rules import between, length, matches, only_one
from ..values import Properties
from ..world import World
from .iam.documents import check_document
from .model import AwsModel


class Queue(AwsModel):
    token = "aws:sqs/queue:Queue"
    auto_name = AutoName("name", 80)
    rules = (
        length("name", 1, 80),
        matches("name", r"[\w-]+(\.fifo)?", "letters, digits, - and _"),
        between("visibilityTimeoutSeconds", 0, 43200),
        between("messageRetentionSeconds", 60, 1209600),
        between("delaySeconds", 0, 900),
        between("receiveWaitTimeSeconds", 0, 20),
        between("maxMessageSize", 1024, 1048576),
        only_one("kmsMasterKeyId", "sqsManagedSseEnabled"),
    )
    replace_on = frozenset({"name", "namePrefix", "fifoQueue"})
    defaults = {
        "visibilityTimeoutSeconds": 30,
        "messageRetentionSeconds": 345600,
        "delaySeconds": 0,
        "fifoQueue": False,
    }
    duplicate_code = "QueueAlreadyExists"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="resource")
        name = inputs.get("name")
        if isinstance(name, str) and bool(inputs.get("fifoQueue")) != name.endswith(".fifo"):
            yield Problem("name", "a FIFO queue's name ends with .fifo, and no other's does")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return f"https://sqs.{world.place.region}.{world.place.dns_suffix}/{world.place.account}/{inputs['name']}"

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"arn": self.arn_in(world, "sqs", inputs["name"]), "url": id}


class QueuePolicy(AwsModel):
    token = "aws:sqs/queuePolicy:QueuePolicy"
    replace_on = frozenset({"queueUrl"})

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="resource")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["queueUrl"])


MODELS = (Queue, QueuePolicy)
