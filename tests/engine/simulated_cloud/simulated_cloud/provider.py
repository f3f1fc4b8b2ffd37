"""A resource provider for the real Pulumi engine: the part that all simulated packages share.

A package subclasses `SimulatedProvider` and says where it works (`place`), how its types behave
(`model`) and which functions it answers (`functions`).
"""

import json
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import grpc
from google.protobuf import empty_pb2
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from . import faults
from .inventory import Inventory, Item
from .lifecycle import Lifecycle
from .messages import abort_partially, decoded, difference, failures, name_of, public, type_of, verb
from .models import PLAIN, CloudError, PartialError, Problem, ResourceModel, changed_paths
from .naming import auto_named, with_auto_name
from .schema_check import check_schema, nearest
from .sdk import Sdk
from .values import Properties, from_struct, to_struct
from .world import World

Function = Callable[[Properties, World], Mapping[str, Any]]


class SimulatedProvider(provider_pb2_grpc.ResourceProviderServicer):
    """One provider process. Every method is a call of the protocol; several run at once."""

    package: ClassVar[str]
    functions: ClassVar[Mapping[str, Function]] = {}

    def __init__(self, inventory: Inventory, sdk: Sdk) -> None:
        self.inventory = inventory
        self.sdk = sdk
        self.config: Properties = {}
        self.lifecycle = Lifecycle(inventory, sdk, self.model)

    # What a package says

    def check_config(self, config: Properties) -> Iterable[Problem]:
        """What is wrong with the provider's own arguments."""
        del config
        return ()

    def configure(self, config: Properties) -> None:
        """Takes the provider's arguments. Raises `CloudError` when the cloud would refuse them."""

    def place(self, inputs: Properties) -> Any:
        """Where a resource with these inputs lives (`world.Place`)."""
        raise NotImplementedError

    def model(self, token: str) -> ResourceModel:
        """The behaviour of a resource type."""
        del token
        return PLAIN

    # The protocol

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request, context
        return provider_pb2.ProviderHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request, context
        return plugin_pb2.PluginInfo(version=self.sdk.version)

    def GetSchema(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request, context
        return provider_pb2.GetSchemaResponse(
            schema=json.dumps({"name": self.package, "version": self.sdk.version})
        )

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del request, context
        return empty_pb2.Empty()

    def CheckConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del context
        config = from_struct(request.news)
        problems = [Problem(*problem) for problem in self.check_config(decoded(config))]
        return provider_pb2.CheckResponse(inputs=to_struct(config), failures=failures(problems))

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del context
        changed = list(changed_paths(from_struct(request.old_inputs), from_struct(request.news)))
        return difference(changed, frozenset(self.replace_provider_on), delete_first=False)

    replace_provider_on: ClassVar[frozenset[str]] = frozenset()

    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self.config = decoded(from_struct(request.args))
        try:
            self.configure(self.config)
        except CloudError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return provider_pb2.ConfigureResponse(
            supportsPreview=True, supports_autonaming_configuration=True
        )

    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del context
        token, name = type_of(request), name_of(request)
        schema = self.sdk.schema(token)
        inputs, old = from_struct(request.news), from_struct(request.olds)
        if schema is None:
            reason = (
                f"there is no resource type {token!r}; {nearest(token, list(self.sdk.tokens()))}"
            )
            return provider_pb2.CheckResponse(
                inputs=to_struct(inputs), failures=failures([Problem("", reason)])
            )
        model = self.model(token)
        inputs = with_auto_name(model, name, inputs, old, request)
        inputs = self.normalise(token, inputs)
        problems = list(check_schema(inputs, schema))
        if not problems:  # rules may rely on the types
            problems = list(model.check(inputs, World(self.inventory, self.place(inputs))))
        return provider_pb2.CheckResponse(inputs=to_struct(inputs), failures=failures(problems))

    def normalise(self, token: str, inputs: Properties) -> Properties:
        """What the real provider adds to or rewrites in the inputs at Check."""
        del token
        return inputs

    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        del context
        model, name = self.model(type_of(request)), name_of(request)
        old, new = from_struct(request.old_inputs), from_struct(request.news)
        ignored = tuple(request.ignoreChanges)
        changed = [path for path in changed_paths(old, new) if not path.startswith(ignored or "\0")]
        delete_first = model.delete_before_replace or (
            model.auto_name is not None and not auto_named(model, name, new)
        )
        return difference(changed, model.replace_on, delete_first=delete_first)

    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        token, name, inputs = type_of(request), name_of(request), from_struct(request.properties)
        world = World(self.inventory, self.place(inputs))
        if request.preview:
            return provider_pb2.CreateResponse(
                properties=to_struct(self.lifecycle.preview(token, inputs))
            )
        item = self._call(
            context,
            "create",
            token,
            name,
            world,
            lambda: self.lifecycle.create(token, name, inputs, world),
        )
        return provider_pb2.CreateResponse(id=item.id, properties=to_struct(public(item.outputs)))

    def Update(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        token, name, inputs = type_of(request), name_of(request), from_struct(request.news)
        world = World(self.inventory, self.place(inputs))
        if request.preview:
            properties = self.lifecycle.preview(
                token, inputs, from_struct(request.olds), from_struct(request.old_inputs)
            )
            return provider_pb2.UpdateResponse(properties=to_struct(properties))
        item = self._call(
            context,
            "update",
            token,
            name,
            world,
            lambda: self.lifecycle.update(token, request.id, inputs, world),
        )
        return provider_pb2.UpdateResponse(properties=to_struct(public(item.outputs)))

    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        token, name = type_of(request), name_of(request)
        world = World(
            self.inventory,
            self.place(from_struct(request.old_inputs) or from_struct(request.properties)),
        )
        self._call(
            context,
            "delete",
            token,
            name,
            world,
            lambda: self.lifecycle.delete(token, request.id, world),
        )
        return empty_pb2.Empty()

    def Read(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        token, name = type_of(request), name_of(request)
        world = World(
            self.inventory,
            self.place(from_struct(request.inputs) or from_struct(request.properties)),
        )
        found = self._call(
            context,
            "read",
            token,
            name,
            world,
            lambda: self.lifecycle.read(token, request.id, world),
        )
        if found is None:
            return provider_pb2.ReadResponse()
        return provider_pb2.ReadResponse(
            id=found.id,
            properties=to_struct(public(found.outputs)),
            inputs=to_struct(public(found.inputs)),
        )

    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        arguments = from_struct(request.args)
        function = self.functions.get(request.tok)
        world = World(self.inventory, self.place(arguments))
        if function is None:
            context.abort(
                grpc.StatusCode.UNIMPLEMENTED,
                f"the simulated cloud does not know the function {request.tok!r}; "
                + nearest(request.tok, list(self.functions)),
            )
            raise AssertionError  # abort does not return
        result = self._call(
            context, "invoke", request.tok, "", world, lambda: function(arguments, world)
        )
        response = provider_pb2.InvokeResponse()
        getattr(response, "return").CopyFrom(to_struct(result))
        return response

    def _call(  # noqa: PLR0917
        self,
        context: grpc.ServicerContext,
        operation: str,
        token: str,
        name: str,
        world: World,
        work: Callable[[], Any],
    ) -> Any:
        """Runs one call against the cloud: ordered faults, errors as the engine expects them, and
        the books."""
        scope = world.place.scope(self.model(token).level)
        result: Any = None
        try:
            faults.before(self.inventory, operation, token, name, scope)
            result = work()
            self._record(operation, token, scope, result, name, "done")
            faults.after(self.inventory, operation, token, name, result)
        except PartialError as error:
            self._record(operation, token, scope, error.item, name, "half-made")
            abort_partially(context, error)
        except CloudError as error:
            self._record(operation, token, scope, None, name, error.code)
            context.abort(
                grpc.StatusCode.UNKNOWN,
                f"{verb(operation)} {token} {name!r}: {error}".replace(" ''", ""),
            )
        except Exception:
            context.abort(
                grpc.StatusCode.INTERNAL,
                f"the simulated cloud has a defect:\n{traceback.format_exc()}",
            )
        return result

    def _record(  # noqa: PLR0917
        self, operation: str, token: str, scope: str, result: Any, name: str, outcome: str
    ) -> None:
        if operation == "invoke" and outcome == "done":
            return
        identifier, scope = (result.id, result.scope) if isinstance(result, Item) else ("", scope)
        self.inventory.record(operation, token, scope, identifier, name, outcome)
