"""Container image repositories."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import pulumi
import pulumi_aws as aws
from pydantic import Field

from terrace_components.arguments import Arguments
from terrace_components.aws import arns
from terrace_components.aws.arguments import Different, KeyArn, Tags

# ECR's own rule for the name of a repository.
REPOSITORY = r"^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$"
UNTAGGED_DAYS = 7


class AwsRegistryArgs(TypedDict):
    """Arguments of ``AwsRegistry``."""

    repositories: list[str]
    """Names of the images, such as ``gateway``. The repository's own name begins with the
    component's and ends in characters that make it unique in the account."""
    key_arn: NotRequired[pulumi.Input[str]]
    """KMS key of the images; default ECR's own AES-256. A change replaces the repositories."""
    keep_images: NotRequired[int]
    """How many images each repository keeps, 1 to 1000; older ones expire. Default 50."""
    force_delete: NotRequired[bool]
    """Delete repositories that still hold images; default false: the deletion then fails."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class RegistrySettings(Arguments):
    """Checked arguments that no other part gives."""

    repositories: Annotated[
        list[Annotated[str, Field(pattern=REPOSITORY, min_length=2, max_length=200)]],
        Different,
        Field(min_length=1),
    ]
    keep_images: Annotated[int, Field(ge=1, le=1000)] = 50
    force_delete: bool = False


class _AwsRegistry(RegistrySettings):
    key_arn: KeyArn | None = None
    tags: Tags = Field(default_factory=dict)


class AwsRegistry(pulumi.ComponentResource):
    """ECR repositories whose tags never move and whose images are scanned when pushed.

    Creates: a repository and its lifecycle policy per name.
    """

    urls: pulumi.Output[dict[str, str]]
    """Name -> URL of its repository, to which ``:tag`` or ``@sha256:...`` is added."""

    def __init__(
        self,
        name: str,
        args: AwsRegistryArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AwsRegistry", name, None, opts)
        given = _AwsRegistry.of(args)
        child = pulumi.ResourceOptions(parent=self)
        urls: dict[str, pulumi.Output[str]] = {}
        for image in given.repositories:
            repository = aws.ecr.Repository(
                f"{name}-{image}",
                image_tag_mutability="IMMUTABLE",
                image_scanning_configuration={"scan_on_push": True},
                encryption_configurations=[
                    {"encryption_type": "KMS", "kms_key": given.key_arn}
                    if given.key_arn is not None
                    else {"encryption_type": "AES256"}
                ],
                force_delete=given.force_delete,
                tags=arns.tags(name, given.tags, Name=image),
                opts=child,
            )
            aws.ecr.LifecyclePolicy(
                f"{name}-{image}",
                repository=repository.name,
                policy=_lifecycle(given.keep_images),
                opts=child,
            )
            urls[image] = repository.repository_url
        self.urls = pulumi.Output.all(**urls).apply(_texts)
        self.register_outputs({"urls": self.urls})


def _texts(known: Mapping[str, Any]) -> dict[str, str]:
    return {image: str(url) for image, url in known.items()}


def _lifecycle(keep: int) -> str:
    """ECR takes the rules in the order of their priority; ``any`` must come last."""
    rules = [
        {
            "rulePriority": 1,
            "description": "Untagged images are left-overs of builds",
            "selection": {
                "tagStatus": "untagged",
                "countType": "sinceImagePushed",
                "countUnit": "days",
                "countNumber": UNTAGGED_DAYS,
            },
            "action": {"type": "expire"},
        },
        {
            "rulePriority": 2,
            "description": f"The newest {keep} are kept",
            "selection": {
                "tagStatus": "any",
                "countType": "imageCountMoreThan",
                "countNumber": keep,
            },
            "action": {"type": "expire"},
        },
    ]
    return json.dumps({"rules": rules}, sort_keys=True)
