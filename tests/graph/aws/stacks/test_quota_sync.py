"""quota_sync is part of a platform that calls a real Bedrock and names its image."""

import json
from typing import Any

IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/terrace/quota-sync:1"


def named(graph: Any, kind: str) -> list[Any]:
    return [r for r in graph.of(kind) if r.inputs.get("metadata", {}).get("name") == "quota-sync"]


def test_it_is_there_where_its_image_is_named_and_only_there(platform: Any) -> None:
    assert named(platform("aws-stage1"), "Deployment") == []
    graph = platform("aws-stage1", images={"quota-sync": IMAGE})
    [deployment] = named(graph, "Deployment")
    [container] = deployment.pod["containers"]
    assert container["image"] == IMAGE


def test_its_pods_have_a_role_of_their_own(platform: Any) -> None:
    graph = platform("aws-stage1", images={"quota-sync": IMAGE})
    accounts = [
        association.inputs["serviceAccount"] for association in graph.of("PodIdentityAssociation")
    ]
    assert accounts.count("quota-sync") == 1
    [deployment] = named(graph, "Deployment")
    associations = {r.name for r in graph.of("PodIdentityAssociation")
                    if r.inputs["serviceAccount"] == "quota-sync"}  # fmt: skip
    assert associations <= graph.needs(deployment)


def test_prometheus_scrapes_it(platform: Any) -> None:
    graph = platform("aws-stage1", images={"quota-sync": IMAGE})
    text = json.dumps([r.inputs["data"] for r in graph.of("ConfigMap")])
    assert "quota-sync-metrics.terrace-gateway" in text
    before = json.dumps([r.inputs["data"] for r in platform("aws-stage1").of("ConfigMap")])
    assert "quota-sync" not in before.replace("of quota-sync:", "")
