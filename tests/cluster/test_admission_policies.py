"""The admission policies on a real API server: what dodges Pulumi is refused there.

Fixtures are those of the rule book; they are sent as server-side dry runs, which pass through
admission like any request and leave nothing behind.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from terrace_policies.admission import manifests
from terrace_policies.cel import CelRule, cel_rules
from terrace_policies.fixtures import cases

ADMITTED = [cel for cel in cel_rules() if cel.rule.admission]
LABEL = "app.kubernetes.io/part-of"
# Born before the policies and without a Pod Security level, so that what refuses a pod is ours.
OURS, BY_NAME, ELSEWHERE = "terrace-admission", "terrace-gateway", "elsewhere"
NODE_PORT = 30998


def eventually(check: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, f"never became true: {what}"
        time.sleep(0.3)


def namespace(name: str, **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}


def moved(properties: Any, name: str = OURS) -> dict[str, Any]:
    """A fixture, in a namespace of this test. The fixtures' own is called `trial`."""
    obj = json.loads(json.dumps(dict(properties)))
    if obj["kind"] == "Namespace":
        obj["metadata"].setdefault("labels", {})[LABEL] = "terrace"
    elif "namespace" in obj["metadata"]:
        obj["metadata"]["namespace"] = name
    return obj


def fixtures_of(cel: CelRule, *, good: bool) -> list[dict[str, Any]]:
    return [
        moved(example.properties)
        for case in cases()
        if case.rule == cel.rule.id and case.good is good
        for example in case.examples
        if example.shown and f"kubernetes:*:{example.type.rpartition(':')[2]}" in cel.rule.types
    ]


def a_pod(name: str = OURS) -> dict[str, Any]:
    """A pod that keeps every rule; no node takes it, so that nothing is pulled."""
    example = next(e for c in cases() for e in c.examples if c.good and e.name == "pod" and e.shown)
    pod = moved(example.properties, name)
    pod["spec"]["nodeSelector"] = {"nowhere": "yes"}
    return pod


class Api:
    """Sends objects to the API server."""

    def __init__(self, kubectl: Any) -> None:
        self.kubectl = kubectl

    def refusal(self, obj: dict[str, Any], *options: str) -> str | None:
        """Why an object is refused; ``None`` if it is admitted. A dry run unless said otherwise."""
        dry = options or ("--dry-run=server",)
        done = self.kubectl.attempt("create", "-f", "-", *dry, text=yaml.safe_dump(obj))
        return None if done.returncode == 0 else done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", text=yaml.safe_dump_all(objects))


@pytest.fixture
def api(kubectl: Any) -> Iterator[Api]:
    """The private cluster with our policies, and three namespaces."""
    made = Api(kubectl)
    policies = manifests(allowed_node_ports=[NODE_PORT])
    made.apply(
        namespace(OURS, **{LABEL: "terrace"}), namespace(BY_NAME), namespace(ELSEWHERE),
        *({"apiVersion": "v1", "kind": "ServiceAccount",
           "metadata": {"name": "app", "namespace": name}} for name in (OURS, BY_NAME)),
    )  # fmt: skip
    for name in (OURS, BY_NAME, ELSEWHERE):
        wait = ("-n", name, "get", "serviceaccount", "default")
        eventually(
            lambda wait=wait: kubectl.attempt(*wait).returncode == 0, f"{name} has an account"
        )
    made.apply(*policies)
    bad = fixtures_of(ADMITTED[-1], good=False)[0]
    # The API server reads policies anew every few seconds; the last one is in force after the rest.
    eventually(lambda: made.refusal(bad) is not None, "the policies are in force")
    yield made
    kubectl("delete", "-f", "-", "--ignore-not-found", text=yaml.safe_dump_all(policies))
    kubectl("delete", "namespace", OURS, BY_NAME, ELSEWHERE, "--ignore-not-found", "--wait=true")


def test_bad_fixtures_are_refused_and_good_ones_are_admitted(api: Api) -> None:
    wrong: list[str] = []
    for cel in ADMITTED:
        for obj in fixtures_of(cel, good=False):
            refusal = api.refusal(obj)
            if refusal is None or f"(Terrace rule {cel.rule.id})" not in refusal:
                wrong.append(f"{cel.rule.id} did not refuse {obj['kind']}: {refusal}")
        for obj in fixtures_of(cel, good=True):
            refusal = api.refusal(obj)
            if refusal is not None and "AlreadyExists" not in refusal:
                wrong.append(f"{cel.rule.id}: a good {obj['kind']} was refused: {refusal}")
    assert wrong == []


def test_the_api_server_finds_nothing_to_say_about_the_policies(api: Api) -> None:
    def statuses() -> dict[str, dict[str, Any]]:
        listed = json.loads(api.kubectl("get", "validatingadmissionpolicies", "-o", "json"))
        return {p["metadata"]["name"]: p.get("status", {}) for p in listed["items"]}

    names = {f"terrace-{cel.rule.id}" for cel in ADMITTED}
    eventually(
        lambda: all("observedGeneration" in statuses().get(name, {}) for name in names),
        "every policy was type-checked",
    )
    warnings = {
        name: status["typeChecking"]["expressionWarnings"]
        for name, status in statuses().items()
        if status.get("typeChecking", {}).get("expressionWarnings")
    }
    assert warnings == {}


def test_a_pod_that_dodges_pulumi_is_refused_by_label_and_by_name(api: Api) -> None:
    for name in (OURS, BY_NAME):
        pod = a_pod(name)
        pod["spec"]["containers"][0]["securityContext"] |= {
            "privileged": True, "allowPrivilegeEscalation": True,
        }  # fmt: skip
        refusal = api.refusal(pod, "--dry-run=none")
        assert refusal is not None
        assert "pod-not-privileged" in refusal
        assert "containers[app].securityContext.allowPrivilegeEscalation must be false" in refusal
        assert "No resources found" in api.kubectl.attempt("-n", name, "get", "pods").stderr
        assert api.refusal(a_pod(name)) is None
    # Other people's namespaces are theirs.
    pod = a_pod(ELSEWHERE)
    pod["spec"]["containers"][0]["image"] = "busybox:latest"
    assert api.refusal(pod) is None


def test_a_node_port_that_is_allowed_is_admitted(api: Api) -> None:
    cel = next(cel for cel in ADMITTED if cel.rule.id == "service-not-exposed")
    service = fixtures_of(cel, good=True)[0]
    service["spec"]["type"] = "NodePort"
    assert "service-not-exposed" in str(api.refusal(service))
    service["spec"]["ports"][0]["nodePort"] = NODE_PORT
    assert api.refusal(service) is None


def test_what_runs_already_cannot_be_made_worse(api: Api) -> None:
    cel = next(cel for cel in ADMITTED if cel.rule.id == "pod-image-pinned")
    deployment = fixtures_of(cel, good=True)[0]
    deployment["spec"]["replicas"] = 0
    api.apply(deployment, a_pod())
    change = ("-n", OURS, "set", "image", "deployment/app", "app=busybox:latest")
    done = api.kubectl.attempt(*change)
    assert done.returncode != 0
    assert "pod-image-pinned" in done.stderr
    done = api.kubectl.attempt("-n", OURS, "set", "image", "pod/app", "app=busybox:latest")
    assert done.returncode != 0
    assert "pod-image-pinned" in done.stderr
    api.kubectl("-n", OURS, "label", "pod/app", "touched=yes")
    debug = ("-n", OURS, "debug", "pod/app", "--image=busybox:latest", "--", "sh")
    done = api.kubectl.attempt(*debug)
    assert done.returncode != 0
    assert "(Terrace rule pod-" in done.stderr


def test_an_object_that_is_being_deleted_can_lose_its_finalizers(kubectl: Any) -> None:
    api = Api(kubectl)
    deployment = next(
        obj for cel in ADMITTED if cel.rule.id == "pod-image-pinned"
        for obj in fixtures_of(cel, good=False) if obj["kind"] == "Deployment"
    )  # fmt: skip
    deployment["spec"]["replicas"] = 0
    deployment["metadata"]["finalizers"] = ["terrace.dev/trial"]
    policies = manifests()
    api.apply(namespace(OURS, **{LABEL: "terrace"}), deployment)
    api.apply(*policies)
    try:
        scale = ("-n", OURS, "annotate", "deployment/app", "touched=yes", "--overwrite")
        eventually(lambda: kubectl.attempt(*scale).returncode != 0, "the policies are in force")
        kubectl("-n", OURS, "delete", "deployment", "app", "--wait=false")
        patch = '{"metadata": {"finalizers": null}}'
        kubectl("-n", OURS, "patch", "deployment", "app", "--type=merge", "-p", patch)
        gone = ("-n", OURS, "get", "deployment", "app")
        eventually(lambda: kubectl.attempt(*gone).returncode != 0, "the object is gone")
    finally:
        kubectl("delete", "-f", "-", "--ignore-not-found", text=yaml.safe_dump_all(policies))
        kubectl("delete", "namespace", OURS, "--wait=true")
