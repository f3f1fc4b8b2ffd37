"""What the simulated API server refuses: by the object alone, and by what is in the cluster."""

import pytest
from kubernetes_api import CONTAINER, POLICY, SERVICE, Api, Object, changed, deployment, thing

from simulated_cloud.kubernetes.models import ObjectModel
from simulated_cloud.models import CloudError
from simulated_cloud.values import UNKNOWN


@pytest.mark.parametrize(
    ("made", "path"),
    [
        (thing("Namespace", "Big"), "metadata.name"),
        (thing("Namespace", "a" * 64), "metadata.name"),
        (thing("Service", "1st", spec=SERVICE["spec"]), "metadata.name"),
        (changed(SERVICE, "spec.ports", []), "spec.ports"),
        (changed(SERVICE, "spec.ports.0.port", 70000), "spec.ports[0].port"),
        (changed(SERVICE, "spec.ports.0.nodePort", 80), "spec.ports[0].nodePort"),
        (changed(SERVICE, "spec.type", "Public"), "spec.type"),
        (changed(SERVICE, "spec.ports", [{"port": 1}, {"port": 2}]), "spec.ports"),
        (changed(deployment(), "metadata.labels", {"a b": "c"}), "metadata.labels"),
        (changed(deployment(), "metadata.labels", {"a": "c d"}), "metadata.labels['a']"),
        (
            changed(deployment(), "spec.template.metadata.labels", {"app": "other"}),
            "spec.template.metadata.labels",
        ),
        (changed(deployment(), "spec.selector", {}), "spec.selector"),
        (
            changed(deployment(), "spec.template.spec.containers", []),
            "spec.template.spec.containers",
        ),
        (changed(deployment(), f"{CONTAINER}.name", "A"), "spec.template.spec.containers[0].name"),
        (changed(deployment(), f"{CONTAINER}.image", ""), "spec.template.spec.containers[0].image"),
        (
            changed(deployment(), f"{CONTAINER}.resources", {"requests": {"cpu": "a lot"}}),
            "spec.template.spec.containers[0].resources.requests['cpu']",
        ),
        (
            changed(
                deployment(),
                f"{CONTAINER}.resources",
                {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}},
            ),
            "spec.template.spec.containers[0].resources.requests['memory']",
        ),
        (
            changed(deployment(), f"{CONTAINER}.volumeMounts", [{"name": "x", "mountPath": "/x"}]),
            "spec.template.spec.containers[0].volumeMounts[0].name",
        ),
        (
            changed(deployment(), f"{CONTAINER}.readinessProbe", {"httpGet": {"port": "http"}}),
            "spec.template.spec.containers[0].readinessProbe",
        ),
        (deployment(restartPolicy="Never"), "spec.template.spec.restartPolicy"),
        (
            thing(
                "Job", spec={"template": {"spec": {"containers": [{"name": "a", "image": "a"}]}}}
            ),
            "spec.template.spec.restartPolicy",
        ),
        (thing("ConfigMap", data={"a/b": "c"}), "data['a/b']"),
        (thing("ConfigMap", data={"a": "c" * (1 << 20) + "c"}), "data"),
        (thing("Secret", data={"a": "not base64!"}), "data['a']"),
        (
            changed(POLICY, "spec.egress.0.to.0.ipBlock.cidr", "10.0.0.1/8"),
            "spec.egress[0].to[0].ipBlock.cidr",
        ),
        (
            changed(POLICY, "spec.egress.0.to.0.ipBlock.cidr", "192.168.0.0/16"),
            "spec.egress[0].to[0].ipBlock.except[0]",
        ),
        (thing("PodDisruptionBudget", spec={"minAvailable": 1, "maxUnavailable": 1}), "spec"),
        (
            thing("HorizontalPodAutoscaler", spec={"minReplicas": 3, "maxReplicas": 2}),
            "spec.maxReplicas",
        ),
        (
            thing("RoleBinding", roleRef={"kind": "Rule", "name": "x", "apiGroup": "x"}),
            "roleRef.kind",
        ),
        (
            thing(
                "Namespace",
                metadata={"labels": {"pod-security.kubernetes.io/enforce": "strict"}},
            ),
            'metadata.labels["pod-security.kubernetes.io/enforce"]',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_object_that_is_wrong_by_itself_is_refused(api: Api, made: Object, path: str) -> None:
    assert path in api.check(made)


def test_good_objects_pass(api: Api) -> None:
    assert not api.check(deployment())
    assert not api.check(SERVICE)
    assert not api.check(POLICY)


@pytest.mark.parametrize(
    "path",
    ["spec.selector", "spec.template", "metadata.labels", CONTAINER, f"{CONTAINER}.image"],
)
def test_what_a_preview_does_not_know_is_not_judged(api: Api, path: str) -> None:
    assert not api.check(changed(deployment(), path, UNKNOWN))


def test_the_namespace_must_exist(api: Api) -> None:
    with pytest.raises(CloudError, match='namespaces "nowhere" not found'):
        api.create(thing("ConfigMap", namespace="nowhere"))


def test_an_object_exists_once(api: Api) -> None:
    api.create(thing("ConfigMap"))
    with pytest.raises(CloudError, match="exists already"):
        api.create(thing("ConfigMap"))


def test_a_selector_change_replaces() -> None:
    assert "spec.selector" in ObjectModel("Deployment", mutable=False).replace_on
    assert "data" in ObjectModel("ConfigMap", mutable=False).replace_on
    assert "data" not in ObjectModel("ConfigMap", mutable=True).replace_on


def test_most_of_a_stateful_set_cannot_be_changed(api: Api) -> None:
    made = {**deployment(), "kind": "StatefulSet"}
    item = api.create(changed(made, "spec.serviceName", "db"))
    with pytest.raises(CloudError, match="spec: serviceName cannot be changed"):
        api.update(item, changed(made, "spec.serviceName", "other"))


def test_admission_policies_are_evaluated(api: Api) -> None:
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["deployments"],
    }
    expression = "object.spec.replicas <= variables.most"
    api.create(
        thing(
            "ValidatingAdmissionPolicy",
            "few",
            spec={
                "matchConstraints": {"resourceRules": [rule]},
                "variables": [{"name": "most", "expression": "1 + 1"}],
                "validations": [{"expression": expression, "message": "at most 2"}],
            },
        )
    )
    api.create(deployment("before", replicas=3))
    binding = {"policyName": "few", "validationActions": ["Deny"]}
    api.create(thing("ValidatingAdmissionPolicyBinding", "few", spec=binding))
    api.create(deployment("fits", replicas=2))
    with pytest.raises(CloudError, match="'few' denied request: at most 2"):
        api.create(deployment("after", replicas=3))
