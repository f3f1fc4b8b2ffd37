"""The pack as Pulumi's engine calls it: the Analyzer protocol, one call per resource and stack.

Not made with ``pulumi_policy.PolicyPack`` (docs/decisions/0005): there a rule that meets an unknown
value does not say which property that was, and all properties are decoded again for every rule. The
protocol is public; here each call decodes once, and an unchecked rule reports itself, as advisory,
under its own name.
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format
from pulumi.runtime.proto import analyzer_pb2 as messages
from pulumi.runtime.proto import analyzer_pb2_grpc as services
from pulumi.runtime.proto import plugin_pb2

from terrace_policies.book import rules
from terrace_policies.configuration import RULE_ID, find_configuration
from terrace_policies.evaluation import Evaluation, Result, configuration_results
from terrace_policies.model import Level, Rule, Severity
from terrace_policies.resources import Resource, Stack
from terrace_policies.state import merged, property_tree

NAME = "terrace"
VERSION = "0.1.0"
MOST_MESSAGE_BYTES = 400 * 1024 * 1024  # as the engine allows
_ENDS = (signal.SIGINT, signal.SIGTERM)  # how the engine says that it is done
_LEVELS = {Level.ADVISORY: messages.ADVISORY, Level.MANDATORY: messages.MANDATORY}
_SEVERITIES = {
    Severity.LOW: messages.POLICY_SEVERITY_LOW,
    Severity.MEDIUM: messages.POLICY_SEVERITY_MEDIUM,
    Severity.HIGH: messages.POLICY_SEVERITY_HIGH,
    Severity.CRITICAL: messages.POLICY_SEVERITY_CRITICAL,
}


class Pack(services.AnalyzerServicer):
    """Answers the engine. ``file`` is the configuration; empty: found as documented."""

    def __init__(self, today: date, file: str = "") -> None:
        self._today = today
        self._file = file
        self._lowered: list[str] = []
        self._inputs: dict[str, Mapping[str, Any]] = {}
        self._evaluation = Evaluation(rules(), find_configuration(rules(), today, file))

    def Handshake(self, request: Any, context: Any) -> Any:  # noqa: N802  names of the protocol
        """Nothing is asked of the engine."""
        del request, context
        return messages.AnalyzerHandshakeResponse()

    def GetPluginInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The pack's version."""
        del request, context
        return plugin_pb2.PluginInfo(version=VERSION)

    def GetAnalyzerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Every rule with its metadata."""
        del request, context
        return messages.AnalyzerInfo(
            name=NAME,
            displayName="Terrace",
            version=VERSION,
            description="Rules of the Terrace AI platform for AWS, Kubernetes and AI governance",
            supportsConfig=True,
            policies=[_policy_info(rule) for rule in rules()],
        )

    def Configure(self, request: Any, context: Any) -> Any:  # noqa: N802
        """``--policy-pack-config``: the name of the configuration file, nothing else.

        A level that is lowered here would have no reason and no end, so it is a violation.
        """
        del context
        self._lowered = []
        for rule in rules():
            given = request.policyConfig.get(rule.id)
            if given is None:
                continue
            if given.enforcementLevel not in {_LEVELS[rule.level], messages.MANDATORY}:
                self._lowered.append(
                    f"the pack's configuration weakens {rule.id} without a reason and an end;"
                    " write it to terrace-policies.yaml instead"
                )
        own = request.policyConfig.get(RULE_ID)
        named = json_format.MessageToDict(own.properties).get("file", "") if own else ""
        configuration = find_configuration(rules(), self._today, str(named) or self._file)
        self._evaluation = Evaluation(rules(), configuration)
        return empty_pb2.Empty()

    def ConfigureStack(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The stack's name comes with every URN."""
        del request, context
        return messages.AnalyzerStackConfigureResponse()

    def Analyze(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Resource rules on the inputs of one resource."""
        del context
        resource = _resource(request)
        self._inputs[resource.urn] = resource.value
        results = self._evaluation.check_resource(resource)
        return messages.AnalyzeResponse(diagnostics=[_diagnostic(r) for r in results])

    def AnalyzeStack(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Stack rules on all resources, then what is wrong with the configuration.

        The engine sends outputs here, and at a preview whatever a provider may fill in is unknown
        in them; so the inputs, seen by ``Analyze`` before, come first.
        """
        del context
        stack = Stack([_stack_resource(item, self._inputs) for item in request.resources])
        results = self._evaluation.check_stack(stack)
        found = [_diagnostic(result) for result in results]
        stack_name = stack.resources[0].stack_name if stack.resources else ""
        problems = configuration_results(self._evaluation, stack_name, self._lowered)
        return messages.AnalyzeResponse(diagnostics=[*found, *map(_diagnostic, problems)])

    def Remediate(self, request: Any, context: Any) -> Any:  # noqa: N802
        """No rule changes anything by itself."""
        del request, context
        return messages.RemediateResponse()

    def Cancel(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Calls are short; nothing is left to stop."""
        del request, context
        return empty_pb2.Empty()


def serve(arguments: Sequence[str]) -> None:
    """Serve the engine that started this process until it ends it.

    Writes the port to stdout, as the engine expects; its own address, the argument, is not needed.
    """
    del arguments
    # Held back, in the threads that gRPC starts too, and waited for at the end: a handler that runs
    # in the middle of somebody's lock could wait for it for ever.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    options = [("grpc.max_receive_message_length", MOST_MESSAGE_BYTES)]
    server = grpc.server(ThreadPoolExecutor(max_workers=1), options=options)
    services.add_AnalyzerServicer_to_server(Pack(datetime.now(UTC).date()), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    signal.sigwait(_ENDS)
    server.stop(grace=None)


def _policy_info(rule: Rule) -> Any:
    first = rule.references[0]
    kind = messages.POLICY_TYPE_RESOURCE if rule.resource else messages.POLICY_TYPE_STACK
    info = messages.PolicyInfo(
        name=rule.id,
        description=rule.description,
        enforcementLevel=_LEVELS[rule.level],
        policy_type=kind,
        severity=_SEVERITIES[rule.severity],
        remediation_steps=rule.remediation,
        tags=[str(reference) for reference in rule.references],
    )
    info.framework.name = first.framework
    info.framework.reference = first.reference
    if rule.id == RULE_ID:
        info.configSchema.properties.update({"file": {"type": "string"}})
    return info


def _diagnostic(result: Result) -> Any:
    rule = result.rule
    return messages.AnalyzeDiagnostic(
        policyName=rule.id,
        policyPackName=NAME,
        policyPackVersion=VERSION,
        description=rule.description,
        message=f"{rule.description}\n{result.text}",
        enforcementLevel=_LEVELS[result.level],
        urn=result.urn,
        severity=_SEVERITIES[rule.severity],
    )


def _resource(request: Any) -> Resource:
    return Resource(
        value=property_tree(json_format.MessageToDict(request.properties)),
        type=request.type,
        name=request.name,
        urn=request.urn,
    )


def _stack_resource(given: Any, inputs: Mapping[str, Mapping[str, Any]]) -> Resource:
    return Resource(
        value=merged(
            inputs.get(given.urn), property_tree(json_format.MessageToDict(given.properties))
        ),
        type=given.type,
        name=given.name,
        urn=given.urn,
        parent=given.parent,
        dependencies={key: list(value.urns) for key, value in given.propertyDependencies.items()},
        depends_on=list(given.dependencies),
    )
