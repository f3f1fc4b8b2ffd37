"""The pack answers the engine's protocol."""

from datetime import date
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import struct_pb2
from pulumi.runtime.proto import analyzer_pb2 as messages

from terrace_policies.book import rules
from terrace_policies.pack import Pack

TODAY = date(2026, 11, 30)
UNKNOWN_STRING = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
CLUSTER = "aws:eks/cluster:Cluster"
BUCKET = "aws:s3/bucket:Bucket"


def urn(kind: str, name: str) -> str:
    return f"urn:pulumi:prod::terrace::{kind}::{name}"


def struct(**tree: Any) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(tree)
    return made


def analyze(pack: Pack, kind: str, name: str, **tree: Any) -> list[Any]:
    request = messages.AnalyzeRequest(
        type=kind, name=name, urn=urn(kind, name), properties=struct(**tree)
    )
    return list(pack.Analyze(request, None).diagnostics)


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pack:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TERRACE_POLICY_CONFIG", raising=False)
    return Pack(TODAY)


def test_it_lists_every_rule_with_its_metadata(pack: Pack) -> None:
    info = pack.GetAnalyzerInfo(None, None)
    assert (info.name, info.supportsConfig) == ("terrace", True)
    assert [policy.name for policy in info.policies] == [rule.id for rule in rules()]
    for policy in info.policies:
        assert policy.framework.name
        assert policy.framework.reference
        assert policy.severity
        assert policy.remediation_steps


def test_a_violation_has_its_level_and_an_unknown_value_is_advisory(pack: Pack) -> None:
    found = analyze(pack, CLUSTER, "eks", vpcConfig={"publicAccessCidrs": ["0.0.0.0/0"]},
                    accessConfig={"authenticationMode": UNKNOWN_STRING})  # fmt: skip
    by_rule = {diagnostic.policyName: diagnostic for diagnostic in found}
    assert by_rule["eks-endpoint-not-open"].enforcementLevel == messages.MANDATORY
    assert by_rule["eks-endpoint-not-open"].urn == urn(CLUSTER, "eks")
    unchecked = by_rule["eks-authentication-by-api"]
    assert unchecked.enforcementLevel == messages.ADVISORY
    assert "unchecked: eks-authentication-by-api: eks: accessConfig.auth" in unchecked.message


def test_stack_rules_read_the_inputs_when_outputs_are_unknown(pack: Pack) -> None:
    kind = "aws:ec2/vpc:Vpc"
    group = "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup"
    analyze(pack, group, "none", vpcId=UNKNOWN_STRING)
    resources = [
        messages.AnalyzerResource(type=kind, name="vpc", urn=urn(kind, "vpc")),
        messages.AnalyzerResource(
            type=group, name="none", urn=urn(group, "none"),
            properties=struct(vpcId=UNKNOWN_STRING, ingress=UNKNOWN_STRING),
            propertyDependencies={"vpcId": messages.AnalyzerPropertyDependencies(
                urns=[urn(kind, "vpc")])},
        ),
    ]  # fmt: skip
    found = pack.AnalyzeStack(messages.AnalyzeStackRequest(resources=resources), None).diagnostics
    assert [d.policyName for d in found] == ["network-flow-logs"]


def test_levels_are_not_lowered_by_the_packs_configuration(pack: Pack) -> None:
    lower = messages.PolicyConfig(enforcementLevel=messages.ADVISORY)
    kept = messages.PolicyConfig(enforcementLevel=messages.MANDATORY)
    pack.Configure(
        messages.ConfigureAnalyzerRequest(policyConfig={"key-rotated": lower, "logs-expire": kept}),
        None,
    )
    found = pack.AnalyzeStack(messages.AnalyzeStackRequest(), None).diagnostics
    (diagnostic,) = found
    assert diagnostic.policyName == "policy-configuration"
    assert diagnostic.enforcementLevel == messages.MANDATORY
    assert "weakens key-rotated without a reason and an end" in diagnostic.message


def test_the_packs_configuration_names_the_file(pack: Pack, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("version: 3\n")
    given = messages.PolicyConfig(
        enforcementLevel=messages.MANDATORY, properties=struct(file="mine.yaml")
    )
    pack.Configure(
        messages.ConfigureAnalyzerRequest(policyConfig={"policy-configuration": given}), None
    )
    found = pack.AnalyzeStack(messages.AnalyzeStackRequest(), None).diagnostics
    assert [d.message.splitlines()[1].split(". ")[0] for d in found] == [
        "mine.yaml: version: must be 1"
    ]
