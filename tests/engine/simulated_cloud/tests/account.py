"""An AWS account without an engine: calls the simulated provider's protocol methods directly."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from google.protobuf import struct_pb2
from pulumi.runtime.proto import provider_pb2

from simulated_cloud.aws.provider import AwsProvider
from simulated_cloud.inventory import Inventory
from simulated_cloud.sdk import Sdk
from simulated_cloud.values import from_struct, to_struct

Properties = dict[str, Any]
SDK = Sdk("aws")


class Refused(Exception):  # noqa: N818 reads as what it is
    """The provider ended a call with an error."""


class _Context:
    def set_trailing_metadata(self, metadata: Any) -> None:
        del metadata

    def abort(self, code: Any, details: str) -> NoReturn:
        del code
        raise Refused(details)


class Account:
    """One provider process of one account and region."""

    def __init__(
        self, directory: Path, region: str = "us-east-1", account: str = "123456789012"
    ) -> None:
        self.inventory = Inventory(directory)
        self.provider = AwsProvider(self.inventory, SDK)
        assume = json.dumps([{"roleArn": f"arn:aws:iam::{account}:role/deploy"}])
        self.provider.Configure(
            provider_pb2.ConfigureRequest(
                args=to_struct({"region": region, "assumeRoles": assume})
            ),
            self._context,
        )

    @property
    def _context(self) -> Any:
        return _Context()

    def check(
        self, type: str, inputs: Mapping[str, Any], name: str = "thing"
    ) -> tuple[Properties, dict[str, str]]:
        """The checked inputs, and what is wrong: property -> reason."""
        answer = self.provider.Check(
            provider_pb2.CheckRequest(
                urn=f"urn:pulumi:dev::p::{type}::{name}",
                type=type,
                name=name,
                news=to_struct(inputs),
                olds=struct_pb2.Struct(),
                randomSeed=name.encode(),
            ),
            self._context,
        )
        wrong: dict[str, str] = {}
        for failure in answer.failures:
            wrong[failure.property] = "; ".join(
                filter(None, (wrong.get(failure.property), failure.reason))
            )
        return from_struct(answer.inputs), wrong

    def create(
        self, type: str, inputs: Mapping[str, Any], name: str = "thing", *, preview: bool = False
    ) -> Properties:
        """Outputs with `id`. Raises `Refused`; a failed check is an AssertionError."""
        checked, failures = self.check(type, inputs, name)
        assert not failures, failures
        answer = self.provider.Create(
            provider_pb2.CreateRequest(
                urn=f"urn:pulumi:dev::p::{type}::{name}",
                type=type,
                name=name,
                properties=to_struct(checked),
                preview=preview,
            ),
            self._context,
        )
        return {**from_struct(answer.properties), "id": answer.id}

    def update(
        self, type: str, id: str, inputs: Mapping[str, Any], name: str = "thing"
    ) -> Properties:
        answer = self.provider.Update(
            provider_pb2.UpdateRequest(
                id=id,
                urn=f"urn:pulumi:dev::p::{type}::{name}",
                type=type,
                name=name,
                news=to_struct(inputs),
            ),
            self._context,
        )
        return from_struct(answer.properties)

    def diff(
        self, type: str, old: Mapping[str, Any], new: Mapping[str, Any], name: str = "thing"
    ) -> Any:
        return self.provider.Diff(
            provider_pb2.DiffRequest(
                id="x",
                urn=f"urn:pulumi:dev::p::{type}::{name}",
                type=type,
                name=name,
                old_inputs=to_struct(old),
                olds=to_struct(old),
                news=to_struct(new),
            ),
            self._context,
        )

    def delete(self, type: str, id: str, name: str = "thing") -> None:
        self.provider.Delete(
            provider_pb2.DeleteRequest(
                id=id, urn=f"urn:pulumi:dev::p::{type}::{name}", type=type, name=name
            ),
            self._context,
        )

    def read(self, type: str, id: str, name: str = "thing") -> Any:
        return self.provider.Read(
            provider_pb2.ReadRequest(
                id=id, urn=f"urn:pulumi:dev::p::{type}::{name}", type=type, name=name
            ),
            self._context,
        )

    def invoke(self, function: str, **arguments: Any) -> Properties:
        answer = self.provider.Invoke(
            provider_pb2.InvokeRequest(tok=function, args=to_struct(arguments)), self._context
        )
        return from_struct(getattr(answer, "return"))
