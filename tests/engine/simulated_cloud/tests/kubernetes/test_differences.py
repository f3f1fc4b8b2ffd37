"""What a change of inputs does: update, replace, and in which order."""

import copy
from typing import Any

import pytest
from kubernetes_api import Api, Object, changed, deployment, thing, token
from pulumi.runtime.proto import provider_pb2

from simulated_cloud.kubernetes.provider import KubernetesProvider, KubernetesSdk
from simulated_cloud.values import UNKNOWN, to_struct


class _Context:
    """A call that nobody waits for."""

    def abort(self, code: Any, text: str) -> None:
        raise AssertionError(f"{code}: {text}")


def difference(api: Api, old: Object, new: Object, **config: Any) -> Any:
    provider = KubernetesProvider(api.inventory, KubernetesSdk("kubernetes"))
    provider.config = config
    request = provider_pb2.DiffRequest(
        type=token(new), name="one", old_inputs=to_struct(old), news=to_struct(new)
    )
    context: Any = _Context()
    return provider.Diff(request, context)


@pytest.mark.parametrize(
    ("path", "value", "replaces"),
    [
        ("spec.replicas", 3, []),
        ("spec.selector.matchLabels.app", "other", ["spec.selector.matchLabels.app"]),
        ("spec", UNKNOWN, []),
        ("spec.selector", UNKNOWN, ["spec.selector"]),
        ("metadata.namespace", "other", ["metadata.namespace"]),
        ("metadata.labels", {"a": "b"}, []),
    ],
)
def test_only_a_change_at_or_below_a_fixed_field_replaces(
    api: Api, path: str, value: Any, replaces: list[str]
) -> None:
    response = difference(api, deployment(), changed(deployment(), path, value))
    assert response.changes == response.DIFF_SOME
    assert list(response.replaces) == replaces


def test_a_config_map_is_replaced_unless_the_provider_may_change_it(api: Api) -> None:
    old, new = thing("ConfigMap", data={"a": "b"}), thing("ConfigMap", data={"a": "c"})
    assert list(difference(api, old, new).replaces) == ["data.a"]
    assert not difference(api, old, new, enableConfigMapMutable=True).replaces


def test_a_fixed_name_is_freed_before_the_replacement_takes_it(api: Api) -> None:
    old, new = thing("ConfigMap", data={"a": "b"}), thing("ConfigMap", data={"a": "c"})
    assert difference(api, old, new).deleteBeforeReplace
    moved = changed(new, "metadata.namespace", "other")
    assert not difference(api, old, moved).deleteBeforeReplace
    by_pulumi = copy.deepcopy(new)
    by_pulumi["metadata"]["annotations"] = {"pulumi.com/autonamed": "true"}
    assert not difference(api, old, by_pulumi).deleteBeforeReplace


def test_the_same_is_no_difference(api: Api) -> None:
    response = difference(api, deployment(), deployment())
    assert response.changes == response.DIFF_NONE
