"""ECR repositories: tags never move, images are scanned, old ones go."""

import json
from typing import Any

import pulumi
import pytest

import terrace_components as components

from .contract import check_component, make

KEY = "arn:aws:kms:eu-west-1:123456789012:key/11111111-2222-4333-8444-555555555555"
VARIANTS = {
    "every": {
        "repositories": ["gateway", "tools/secret-bootstrap"],
        "key_arn": KEY,
        "keep_images": 7,
        "force_delete": True,
        "tags": {"team": "platform"},
    },
    "least": {"repositories": ["gateway"]},
}


def test_the_component_keeps_the_contract(render: Any, snapshot: Any, house_rules: Any) -> None:
    check_component(render, snapshot, house_rules, "AwsRegistry", VARIANTS)


def test_tags_never_move_and_images_are_scanned(render: Any) -> None:
    for repository in render(make("AwsRegistry", VARIANTS["every"])).of("Repository"):
        assert repository.inputs["imageTagMutability"] == "IMMUTABLE"
        assert repository.inputs["imageScanningConfiguration"] == {"scanOnPush": True}
        assert repository.inputs["encryptionConfigurations"] == [
            {"encryptionType": "KMS", "kmsKey": KEY}
        ]
        assert repository.inputs["forceDelete"] is True
        assert "name" not in repository.inputs


def test_by_default_images_are_not_deleted_with_the_repository(render: Any) -> None:
    [repository] = render(make("AwsRegistry", VARIANTS["least"])).of("Repository")
    assert repository.inputs["forceDelete"] is False
    assert repository.inputs["encryptionConfigurations"] == [{"encryptionType": "AES256"}]


def test_the_newest_images_are_kept(render: Any) -> None:
    graph = render(make("AwsRegistry", VARIANTS["every"]))
    for policy in graph.of("LifecyclePolicy"):
        rules = json.loads(policy.inputs["policy"])["rules"]
        assert [r["rulePriority"] for r in rules] == [1, 2]
        # ECR refuses a policy in which a rule on any tag is not the last.
        assert [r["selection"]["tagStatus"] for r in rules] == ["untagged", "any"]
        assert rules[1]["selection"]["countNumber"] == 7


def test_urls_are_by_name(render: Any) -> None:
    graph = render(
        lambda: pulumi.export("urls", components.AwsRegistry("it", VARIANTS["every"]).urls)
    )
    assert list(graph.outputs["urls"]) == ["gateway", "tools/secret-bootstrap"]
    for image, url in graph.outputs["urls"].items():
        assert url.startswith(f"123456789012.dkr.ecr.eu-west-1.amazonaws.com/it-{image}-")


@pytest.mark.parametrize(
    ("changes", "path", "reason"),
    [
        ({"repositories": []}, "repositories", "at least 1"),
        ({"repositories": ["aa", "aa"]}, "repositories", "once"),
        ({"repositories": ["Gateway"]}, "repositories.0", "pattern"),
        ({"repositories": ["ends-"]}, "repositories.0", "pattern"),
        ({"keep_images": 0}, "keep_images", "greater than or equal to 1"),
        ({"keep_images": 1001}, "keep_images", "1000"),
        ({"key_arn": "alias/mine"}, "key_arn", "ARN of a KMS key"),
        ({"force_delete": "perhaps"}, "force_delete", "boolean"),
    ],
)
def test_nonsense_is_refused_by_name(
    refused: Any, changes: dict[str, Any], path: str, reason: str
) -> None:
    assert reason in refused(make("AwsRegistry", VARIANTS["least"], **changes), path)
