"""ECR repositories, their lifecycle policies and pull-through caches."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ..inventory import Inventory, Item
from ..models import AutoName, CloudError, Link, Problem
from ..rules import length, matches, one_of
from ..values import Properties, known
from ..world import World
from .iam.documents import check_document
from .kms import refuse_missing_key
from .model import ArnOf, AwsModel, digest

REPOSITORY: Final = "aws:ecr/repository:Repository"
IMAGE: Final = "aws:ecr/image:Image"
"""Images are no Pulumi resources; they are in the inventory because they keep a repository from
being deleted."""
_NAME = r"(?:[a-z0-9]+(?:[._-][a-z0-9]+)*/)*[a-z0-9]+(?:[._-][a-z0-9]+)*"


class Repository(AwsModel):
    token = REPOSITORY
    auto_name = AutoName("name", 256, lower=True)
    rules = (
        length("name", 2, 256),
        matches(
            "name",
            _NAME,
            "lower-case letters and digits, single . _ - between them, parts separated by /",
        ),
        one_of(
            "imageTagMutability",
            "MUTABLE",
            "IMMUTABLE",
            "MUTABLE_WITH_EXCLUSION",
            "IMMUTABLE_WITH_EXCLUSION",
        ),
        one_of("encryptionConfigurations[].encryptionType", "AES256", "KMS", "KMS_DSSE"),
    )
    arns = (ArnOf("encryptionConfigurations[].kmsKey", "kms", "key/.+", here=True),)
    replace_on = frozenset({"name", "encryptionConfigurations"})
    defaults = {"imageTagMutability": "MUTABLE", "forceDelete": False}
    duplicate_code = "RepositoryAlreadyExistsException"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, entry in known(inputs, "encryptionConfigurations[]"):
            if entry.get("kmsKey") is not None and entry.get("encryptionType") in (None, "AES256"):
                yield Problem(f"{where}.encryptionType", "must be KMS when kmsKey is set")

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["name"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        for where, key in known(inputs, "encryptionConfigurations[].kmsKey"):
            refuse_missing_key(key, where, world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        place = world.place
        return {
            "arn": self.arn_in(world, "ecr", f"repository/{id}"),
            "registryId": place.account,
            "repositoryUrl": f"{place.account}.dkr.ecr.{place.region}.{place.dns_suffix}/{id}",
        }

    def blocks_delete(self, item: Item, world: World) -> str | None:
        images = world.find(IMAGE, repository=item.id)
        if images and not item["forceDelete"]:
            return (
                f"RepositoryNotEmptyException: {item.id} cannot be deleted because it still"
                f" contains images ({len(images)})"
            )
        return None

    def deleted(self, item: Item, world: World) -> None:
        for other in world.all():
            if (
                other.type in (IMAGE, LifecyclePolicy.token, RepositoryPolicy.token)
                and other["repository"] == item.id
            ):
                world.inventory.remove(other)


def push_image(inventory: Inventory, repository: Item, tag: str) -> Item:
    """Puts an image into a repository, as `docker push` would. Raises `ValueError` for a tag that
    cannot change."""
    old = inventory.items(type=IMAGE, scopes=(repository.scope,), id=f"{repository.id}:{tag}")
    if old and repository["imageTagMutability"] == "IMMUTABLE":
        raise ValueError(f"tag: {tag!r} exists in {repository.id}, whose tags are immutable")
    values = {
        "repository": repository.id,
        "tag": tag,
        "digest": f"sha256:{digest(repository.id, tag, length=64)}",
    }
    item = Item(IMAGE, repository.scope, f"{repository.id}:{tag}", tag, values, dict(values))
    inventory.put(item)
    return item


class _OfRepository(AwsModel):
    links = (
        Link("repository", REPOSITORY, by=("id", "name"), not_found="RepositoryNotFoundException"),
    )
    replace_on = frozenset({"repository"})
    duplicate_code = "SimulatedConflict"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["repository"])

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"registryId": world.place.account}


class LifecyclePolicy(_OfRepository):
    token = "aws:ecr/lifecyclePolicy:LifecyclePolicy"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        for where, text in known(inputs, "policy"):
            try:
                document = json.loads(text) if isinstance(text, str) else text
            except ValueError as error:
                yield Problem(where, f"is not JSON ({error})")
            else:
                yield from (Problem(where, reason) for reason in _lifecycle_problems(document))


class RepositoryPolicy(_OfRepository):
    token = "aws:ecr/repositoryPolicy:RepositoryPolicy"

    def check(self, inputs: Properties, world: World) -> Iterable[Problem]:
        yield from super().check(inputs, world)
        yield from check_document(inputs.get("policy"), "policy", kind="resource")


class PullThroughCacheRule(AwsModel):
    token = "aws:ecr/pullThroughCacheRule:PullThroughCacheRule"
    rules = (
        matches(
            "ecrRepositoryPrefix",
            r"ROOT|[a-z0-9]+([._/-][a-z0-9]+)*",
            "lower-case letters, digits and single . _ - /",
        ),
        length("ecrRepositoryPrefix", 2, 30),
        matches("upstreamRegistryUrl", r"[a-z0-9.-]+\.[a-z]+", "a registry's host name"),
    )
    replace_on = frozenset(
        {"ecrRepositoryPrefix", "upstreamRegistryUrl", "upstreamRepositoryPrefix"}
    )
    duplicate_code = "PullThroughCacheRuleAlreadyExistsException"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(inputs["ecrRepositoryPrefix"])

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        needs_login = ("docker.io", "ghcr.io", "azurecr.io", "gitlab.com")
        url = str(inputs["upstreamRegistryUrl"])
        if url.endswith(needs_login) and not inputs.get("credentialArn"):
            raise CloudError("InvalidParameterException", f"credentialArn is required for {url}")

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        return {"registryId": world.place.account}


def _lifecycle_problems(document: Any) -> Iterator[str]:
    rules = document.get("rules") if isinstance(document, dict) else None
    if not isinstance(rules, list) or not rules:
        yield "rules: at least one rule is required"
        return
    priorities = [rule.get("rulePriority") for rule in rules]
    if len(set(map(str, priorities))) != len(priorities):
        yield "rules: each rulePriority must be given once"
    for index, rule in enumerate(rules):
        selection = rule.get("selection") or {}
        if not isinstance(rule.get("rulePriority"), int) or rule["rulePriority"] < 1:
            yield f"rules[{index}].rulePriority: must be an integer from 1"
        if selection.get("tagStatus") not in ("tagged", "untagged", "any"):
            yield (
                f"rules[{index}].selection.tagStatus: {selection.get('tagStatus')!r} is not one of"
                " tagged, untagged, any"
            )
        if selection.get("tagStatus") == "tagged" and not (
            selection.get("tagPrefixList") or selection.get("tagPatternList")
        ):
            yield f"rules[{index}].selection.tagPrefixList: is required for tagged images"
        if selection.get("countType") not in (
            "imageCountMoreThan",
            "sinceImagePushed",
            "sinceImagePulled",
            "sinceImageTransitioned",
        ):
            yield (
                f"rules[{index}].selection.countType: {selection.get('countType')!r} is not one of"
                " imageCountMoreThan, sinceImagePushed"
            )
        if (
            selection.get("countType") == "sinceImagePushed"
            and selection.get("countUnit") != "days"
        ):
            yield f"rules[{index}].selection.countUnit: must be days with sinceImagePushed"
        if (rule.get("action") or {}).get("type") not in ("expire", "transition"):
            yield f"rules[{index}].action.type: must be expire or transition"


MODELS = (Repository, LifecyclePolicy, RepositoryPolicy, PullThroughCacheRule)
