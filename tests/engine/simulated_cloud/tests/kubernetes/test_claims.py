"""The volume claims of a StatefulSet outlive it, its pods and its scale, as it says itself."""

import pytest
from kubernetes_api import Api, changed, stateful_set, thing


def claims(api: Api) -> set[str]:
    return {item.id for item in api.cluster.items() if item.type.endswith("PersistentVolumeClaim")}


def of(*numbers: int, name: str = "db") -> set[str]:
    return {f"app/data-{name}-{number}" for number in numbers}


def test_each_replica_has_a_claim_of_its_own(api: Api) -> None:
    api.create(stateful_set(replicas=2))
    assert claims(api) == of(0, 1)


@pytest.mark.parametrize(
    ("policy", "scaled", "deleted"),
    [
        (None, of(0, 1, 2), of(0, 1, 2)),
        ({"whenScaled": "Retain", "whenDeleted": "Retain"}, of(0, 1, 2), of(0, 1, 2)),
        ({"whenScaled": "Delete", "whenDeleted": "Retain"}, of(0), of(0)),
        ({"whenScaled": "Retain", "whenDeleted": "Delete"}, of(0, 1, 2), set[str]()),
    ],
)
def test_the_retention_policy_is_kept(
    api: Api, policy: dict[str, str] | None, scaled: set[str], deleted: set[str]
) -> None:
    spec = {} if policy is None else {"persistentVolumeClaimRetentionPolicy": policy}
    api.create(stateful_set("other"))
    made = stateful_set(replicas=3, **spec)
    item = api.update(api.create(made), changed(made, "spec.replicas", 1))
    assert claims(api) == scaled | of(0, name="other")
    api.delete(item)
    assert claims(api) == deleted | of(0, name="other")


def test_claims_go_with_their_namespace(api: Api) -> None:
    api.create(thing("Namespace", "gone"))
    item = next(i for i in api.cluster.items() if i.id == "gone")
    api.create(changed(stateful_set(), "metadata.namespace", "gone"))
    assert claims(api) == {"gone/data-db-0"}
    api.delete(item)
    assert claims(api) == set()
