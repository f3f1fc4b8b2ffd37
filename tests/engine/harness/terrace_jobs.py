"""What Terrace's own Jobs do inside the simulated cluster (see simulated_cloud.kubernetes.jobs).

Written like the programs that the Jobs run, and judged by what those may do: RBAC for Secrets, Pod
Identity for what is in AWS. Every secret value that is born here begins with ``canary-``, so that
a test can prove that none ends up anywhere else.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from simulated_cloud.kubernetes.clusters import Cluster
from simulated_cloud.kubernetes.objects import Key

CANARY = "canary-"
Manifest = Mapping[str, Any]
Put = Callable[[Manifest], None]


def completed(job: Manifest, cluster: Cluster, put: Put) -> str | None:
    """Run a Job. Why it fails, or None."""
    pod = job["spec"]["template"]["spec"]
    account = (str(job["metadata"]["namespace"]), str(pod.get("serviceAccountName") or "default"))
    for container in pod["containers"]:
        variables = {v["name"]: v.get("value") for v in container.get("env") or []}
        spec = json.loads(variables.get("SECRETS_SPEC") or "[]")
        if reason := _bootstrap(spec, account, cluster, put):
            return reason
        for name, value in variables.items():
            if name.endswith("DATABASE_HOST") and (reason := _no_database(str(value), cluster)):
                return reason
    return None


def _bootstrap(
    spec: list[dict[str, Any]], account: tuple[str, str], cluster: Cluster, put: Put
) -> str | None:
    for entry in spec:
        namespace, name = entry["namespace"], entry["name"]
        key = Key("", "Secret", namespace, name)
        theirs = any("existing" in how for how in entry["data"].values())
        verb = "get" if theirs else "create"
        if not _may(account, verb, namespace, cluster):
            return f'secrets is forbidden: {account[1]} cannot {verb} secrets in "{namespace}"'
        if cluster.get(key) is not None:
            continue
        if theirs:
            return f"Secret {namespace}/{name} is not there"
        if not cluster.has_namespace(namespace):
            return f'namespaces "{namespace}" not found'
        for how in entry["data"].values():
            source = how.get("secrets_manager")
            if source and (reason := _unreadable(source["arn"], account, cluster)):
                return reason
        values = {
            one: CANARY + hashlib.sha256(f"{key}/{one}".encode()).hexdigest()
            for one in entry["data"]
        }
        metadata = {"namespace": namespace, "name": name}
        put({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": values})
    return None


def _may(account: tuple[str, str], verb: str, namespace: str, cluster: Cluster) -> bool:
    """Whether a Role bound to the account in the namespace allows the verb on Secrets."""
    for binding in cluster.objects("RoleBinding"):
        subjects = {(s.get("namespace"), s.get("name")) for s in binding.get("subjects") or []}
        if binding["metadata"].get("namespace") != namespace or account not in subjects:
            continue
        key = Key("rbac.authorization.k8s.io", "Role", namespace, binding["roleRef"]["name"])
        for rule in (cluster.get(key) or {}).get("rules") or []:
            if verb in rule["verbs"] and "secrets" in (rule.get("resources") or []):
                return True
    return False


def _unreadable(arn: str, account: tuple[str, str], cluster: Cluster) -> str | None:
    """Why Secrets Manager does not give the secret to the account, or None."""
    if arn not in set(_secret_arns(cluster)):
        return f"ResourceNotFoundException: Secrets Manager has no secret {arn}"
    roles = [
        str(one["roleArn"])
        for one in cluster.inventory.items(
            type="aws:eks/podIdentityAssociation:PodIdentityAssociation"
        )
        if (one["namespace"], one["serviceAccount"]) == account
    ]
    if not roles:
        return f"no credentials: {'/'.join(account)} has no Pod Identity association"
    for document in _policies(roles[0], cluster):
        for statement in document.get("Statement", []):
            actions, resources = _list(statement["Action"]), _list(statement["Resource"])
            if (
                statement["Effect"] == "Allow"
                and any(fnmatchcase("secretsmanager:GetSecretValue", a) for a in actions)
                and any(fnmatchcase(arn, r) for r in resources)
            ):
                return None
    return f"AccessDeniedException: {roles[0]} may not secretsmanager:GetSecretValue on {arn}"


def _secret_arns(cluster: Cluster) -> Iterator[str]:
    for item in cluster.inventory.items(type="aws:secretsmanager/secret:Secret"):
        yield item.arn
    for item in cluster.inventory.items(type="aws:rds/cluster:Cluster"):
        for secret in item["masterUserSecrets"] or []:
            yield str(secret["secretArn"])


def _policies(role_arn: str, cluster: Cluster) -> Iterator[dict[str, Any]]:
    """The documents of a role's inline and attached policies."""
    name = role_arn.rpartition("/")[2]
    items = cluster.inventory.items
    for item in items(type="aws:iam/rolePolicy:RolePolicy"):
        if item["role"] == name:
            yield json.loads(item["policy"])
    by_arn = {item.arn: item["policy"] for item in items(type="aws:iam/policy:Policy")}
    for item in items(type="aws:iam/rolePolicyAttachment:RolePolicyAttachment"):
        if item["role"] == name and item["policyArn"] in by_arn:
            yield json.loads(by_arn[item["policyArn"]])
    for item in items(type="aws:iam/role:Role"):
        if item["name"] == name:
            yield from (json.loads(one["policy"]) for one in item["inlinePolicies"] or [])


def _no_database(host: str, cluster: Cluster) -> str | None:
    if ".rds." not in host:
        return None
    clusters = cluster.inventory.items(type="aws:rds/cluster:Cluster")
    if any(item["endpoint"] == host for item in clusters):
        return None
    return f'could not translate host name "{host}" to address'


def _list(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]
