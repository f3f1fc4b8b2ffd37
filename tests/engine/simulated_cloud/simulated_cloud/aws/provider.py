"""`pulumi-resource-aws`: account and region from the provider's arguments, behaviour from the
service modules."""

import os
import re
from collections.abc import Iterable
from typing import ClassVar, Final

from ..inventory import Inventory
from ..models import CloudError, Problem, ResourceModel
from ..provider import SimulatedProvider
from ..schema_check import nearest
from ..sdk import Sdk
from ..server import serve
from ..values import UNKNOWN, Properties, first
from .catalogue import FUNCTIONS, MODELS
from .iam.documents import as_text
from .model import OtherModel
from .place import REGIONS, AwsPlace

ACCOUNT_VARIABLE: Final = "SIMULATED_CLOUD_ACCOUNT"
_DOCUMENTS: Final = {"policy": "", "assumeRolePolicy": ""}
_DEFAULT_ACCOUNT: Final = "123456789012"


class AwsProvider(SimulatedProvider):
    package = "aws"
    functions = FUNCTIONS
    replace_provider_on: ClassVar[frozenset[str]] = frozenset()

    def check_config(self, config: Properties) -> Iterable[Problem]:
        region = config.get("region") or _region_from_environment()
        if region is UNKNOWN:
            return
        if not region:
            yield Problem("region", "no region: set `aws:region` or AWS_REGION")
        elif region not in REGIONS:
            yield Problem(
                "region", f"{region!r} is not an AWS region; {nearest(str(region), list(REGIONS))}"
            )

    def configure(self, config: Properties) -> None:
        allowed = config.get("allowedAccountIds")
        if isinstance(allowed, list) and allowed and self._account() not in allowed:
            raise CloudError(
                "AccountNotAllowed",
                f"account {self._account()} is not in allowedAccountIds {allowed}",
            )
        if self._account() in (config.get("forbiddenAccountIds") or []):
            raise CloudError(
                "AccountNotAllowed", f"account {self._account()} is in forbiddenAccountIds"
            )

    def place(self, inputs: Properties) -> AwsPlace:
        region = inputs.get("region")
        if not isinstance(region, str) or region not in REGIONS:
            region = self.config.get("region") or _region_from_environment() or "us-east-1"
        return AwsPlace(account=self._account(), region=str(region))

    def model(self, token: str) -> ResourceModel:
        return MODELS.get(token) or OtherModel(token)

    def normalise(self, token: str, inputs: Properties) -> Properties:
        schema = self.sdk.schema(token)
        if schema and "region" in schema.inputs and inputs.get("region") is None:
            inputs = {**inputs, "region": self.place({}).region}
        for name in _DOCUMENTS.keys() & inputs.keys():
            inputs = {**inputs, name: as_text(inputs[name])}
        if schema and "tagsAll" in schema.outputs and "tags" in schema.inputs:
            default = first(self.config, "defaultTags.tags", {})
            tags = inputs.get("tags")
            if tags is None and default:
                inputs = {**inputs, "tags": default}
            elif isinstance(tags, dict) and default:
                inputs = {**inputs, "tags": {**default, **tags}}
        return inputs

    def _account(self) -> str:
        """The account of the assumed role, or `SIMULATED_CLOUD_ACCOUNT`, or the documentation's own
        number."""
        assumed = first(self.config, "assumeRoles[].roleArn", "")
        found = re.match(r"arn:[\w-]+:iam::(\d{12}):role/", str(assumed))
        return found[1] if found else os.environ.get(ACCOUNT_VARIABLE) or _DEFAULT_ACCOUNT


def _region_from_environment() -> str | None:
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


def main() -> None:
    serve(AwsProvider(Inventory(), Sdk("aws")))
