"""AwsPodIdentity: rights of one service account in one cluster, named one by one."""

import json
import typing
from typing import Any

import pulumi
import pytest

import terrace_components as components

from .cloud import ACCOUNT, documents
from .contract import check_component
from .iam_lint import problems

ARN = "arn:aws:s3:::evidence/*"


def policy(*statements: dict[str, Any], **more: Any) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements), **more})


def allow(**changes: Any) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": ARN, **changes}
    return {key: value for key, value in statement.items() if value is not None}


READS = policy(allow())


NEEDED: dict[str, Any] = {
    "cluster_name": "a-cluster",
    "namespace": "a-namespace",
    "service_account": "an-account",
    "policy": READS,
}
VARIANTS: dict[str, dict[str, Any]] = {"every": {**NEEDED, "tags": {"team": "platform"}}}


def make(**changes: Any) -> Any:
    args = {**NEEDED, **changes}
    args = {key: value for key, value in args.items() if value is not None}
    return lambda: components.AwsPodIdentity("it", typing.cast(Any, args))


def trust(graph: Any) -> dict[str, Any]:
    [role] = graph.of("Role")
    return json.loads(role.inputs["assumeRolePolicy"])


def test_only_pods_of_the_account_in_the_cluster_take_the_role(render: Any) -> None:
    [statement] = trust(render(make()))["Statement"]
    assert statement["Principal"] == {"Service": "pods.eks.amazonaws.com"}
    assert statement["Action"] == ["sts:AssumeRole", "sts:TagSession"]
    assert statement["Condition"] == {
        "StringEquals": {
            "aws:SourceAccount": ACCOUNT,
            "aws:RequestTag/eks-cluster-name": "a-cluster",
            "aws:RequestTag/kubernetes-namespace": "a-namespace",
            "aws:RequestTag/kubernetes-service-account": "an-account",
        }
    }


def test_the_association_comes_when_the_rights_are_there(render: Any) -> None:
    graph = render(make())
    [association] = graph.of("PodIdentityAssociation")
    assert association.inputs["namespace"] == "a-namespace"
    assert association.inputs["serviceAccount"] == "an-account"
    assert association.inputs["clusterName"] == "a-cluster"
    # Without session tags the trust policy would match nothing.
    assert "disableSessionTags" not in association.inputs
    assert "it-policy" in graph.needs(association)


def test_the_policy_is_the_one_given(render: Any) -> None:
    [made] = render(make()).of("RolePolicy")
    assert json.loads(made.inputs["policy"]) == json.loads(READS)


def test_a_policy_of_outputs_is_checked_when_it_is_known(render: Any) -> None:
    def program(action: str) -> Any:
        def body() -> None:
            known = pulumi.Output.from_input(action)
            make(policy=known.apply(lambda what: policy(allow(Action=what))))()

        return body

    assert render(program("s3:GetObject")).of("RolePolicy")
    with pytest.raises(Exception, match="must name its actions"):
        render(program("*"))


def test_the_role_arn_is_known_when_pods_have_it(render: Any) -> None:
    def program() -> None:
        pulumi.export("role", make()().role_arn)

    assert render(program).outputs["role"].startswith("arn:aws:iam::")


def test_a_preview_registers_all(render: Any) -> None:
    known, unknown = render(make()), render(make(), preview=True)
    assert sorted((r.type, r.name) for r in unknown.resources) == sorted(
        (r.type, r.name) for r in known.resources
    )


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsPodIdentity", VARIANTS)


def test_house_rules(render: Any, house_rules: Any) -> None:
    house_rules(render(make(tags={"team": "a"})), "it", tags={"team": "a"})


def test_a_linter_finds_nothing_in_what_we_write(render: Any) -> None:
    for document in documents(render(make())):
        assert problems(_as_identity_policy(document)) == []


@pytest.mark.parametrize(
    "document",
    [
        policy(allow(), {"Effect": "Deny", "Action": "*", "Resource": "*"}),
        policy(allow(Action=["s3:GetObject", "s3:PutObject"])),
        policy(allow(Action="bedrock:InvokeModel*")),
        json.dumps({"Version": "2012-10-17", "Statement": allow()}),
    ],
)
def test_these_are_taken(render: Any, document: str) -> None:
    assert render(make(policy=document)).of("RolePolicy")


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"policy": None}, "policy", "is required"),
        ({"policy": "{"}, "policy", "must be JSON"),
        ({"policy": "[]"}, "policy", "IAM policy document"),
        ({"policy": "{}"}, "policy", "2012-10-17"),
        ({"policy": READS.replace("2012", "2008")}, "policy", "2012-10-17"),
        ({"policy": policy()}, "policy", "a statement at least"),
        ({"policy": json.dumps({"Version": "2012-10-17", "Statement": ["x"]})}, "policy", "object"),
        ({"policy": policy(allow(Action="*"))}, "policy", "must name its actions"),
        ({"policy": policy(allow(Action="s3:*"))}, "policy", "not 's3:*'"),
        ({"policy": policy(allow(), allow(Action=["s3:GetObject", "*"]))}, "policy", "statement 1"),
        ({"policy": policy(allow(Action=None))}, "policy", "must name its actions"),
        ({"policy": policy(allow(Action=None, NotAction="s3:*"))}, "policy", "by Action"),
        ({"policy": policy(allow(Resource=None, NotResource=ARN))}, "policy", "by Action"),
        ({"policy": policy(allow(Resource=None))}, "policy", "its Resource"),
        ({"policy": policy(allow(Effect="allow"))}, "policy", "Allow or Deny"),
        ({"policy": policy(allow(Principal="*"))}, "policy", "no Principal"),
        ({"policy": policy(*[allow(Sid=f"s{n}") for n in range(200)])}, "policy", "10240"),
        ({"policy": {"Version": "2012-10-17"}}, "policy", "JSON text"),
        ({"namespace": "Not A Name"}, "namespace", "pattern"),
        ({"service_account": "-"}, "service_account", "pattern"),
        ({"cluster_name": ""}, "cluster_name", "not empty"),
        ({"tags": {"": "x"}}, "tags", "1 to 128"),
        ({"role": "x"}, "role", "service_account"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make(**changes), path)


def _as_identity_policy(document: dict[str, Any]) -> dict[str, Any]:
    """The linter reads identity policies: a trust policy is of the role it stands in."""
    role = f"arn:aws:iam::{ACCOUNT}:role/it"
    statements = [
        {"Resource": role, **{k: v for k, v in s.items() if k != "Principal"}}
        for s in document["Statement"]
    ]
    return {**document, "Statement": statements}
