"""Settings of what lives in a cluster that others made: images, provider keys, scale."""

import json
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from terrace_blueprints.setting_problems import (
    BUCKET,
    KEY_ARN,
    SECRET_ARN,
    SECRET_NAME,
    VARIABLE,
)
from terrace_blueprints.spelling import nearest
from terrace_common.names import IMAGES


class Section(BaseModel):
    """A nested setting: keys in camelCase, unknown ones refused."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, alias_generator=to_camel
    )


def section(value: Any) -> Any:
    """A nested setting: Pulumi hands it to the program as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError("must be a YAML mapping") from None


def _known_image(name: str) -> str:
    valid = (*IMAGES, *OTHER_IMAGES)
    if name not in valid:
        near = nearest(name, valid)
        hint = f" (did you mean {near!r}?)" if near else ""
        raise ValueError(f"{name!r} is no image{hint}; valid: {', '.join(valid)}")
    return name


def _names_one_image(reference: str) -> str:
    last = reference.rsplit("/", maxsplit=1)[-1]
    if last.endswith(":latest") or (":" not in last and "@sha256:" not in reference):
        raise ValueError(
            "must name one image by tag or digest, not latest: registry/name:tag or "
            f"registry/name@sha256:...; got {reference!r}"
        )
    return reference


# What runs only where it is named: the controller, which others make and a network without the
# internet must hold a copy of, and quota_sync, which needs a real Bedrock.
OTHER_IMAGES = ("load-balancer-controller", "quota-sync")
ImageName = Annotated[str, AfterValidator(_known_image)]
Variable = Annotated[str, Field(pattern=VARIABLE)]
KeyArn = Annotated[str, Field(pattern=KEY_ARN)]
MOST_LOCK_DAYS = 3650  # nobody takes a lock back: as many as of the bucket's own
ImageReference = Annotated[str, Field(pattern=r"^\S+$"), AfterValidator(_names_one_image)]


class ProviderSecret(Section):
    """Where one credential of a model provider is kept. It goes from there into the cluster
    without passing through Pulumi."""

    arn: str | None = Field(default=None, pattern=SECRET_ARN)
    """aws: ARN of a secret in Secrets Manager."""
    json_key: str | None = None
    """aws: key of the value, when the secret is a JSON object."""
    key_arn: str | None = Field(default=None, pattern=KEY_ARN)
    """aws: KMS key that encrypts it, when that is not the account's own for Secrets Manager."""
    secret: str | None = Field(default=None, pattern=SECRET_NAME)
    """existing: ``namespace/name`` of a Secret in the cluster."""
    key: str | None = None
    """existing: key of that Secret."""

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        in_cloud, in_cluster = self.arn is not None, self.secret is not None
        wrong = in_cloud == in_cluster
        wrong = wrong or (in_cloud and self.key is not None)
        wrong = wrong or (in_cluster and (self.key is None or bool(self.json_key or self.key_arn)))
        if wrong:
            raise ValueError(
                "must be {arn} (and jsonKey, keyArn if needed) on aws, or "
                "{secret: namespace/name, key} on existing"
            )
        return self


class AnchorSettings(Section):
    """The bucket with signed heads of the ledger, below ``anchors/``."""

    bucket: str | None = Field(default=None, pattern=BUCKET)
    """Its name; default the substrate's (``terrace:aws.objects``)."""
    key_arn: KeyArn | None = None
    """KMS key that encrypts it; default the substrate's of its own new bucket, else none, which is
    right for S3's own keys."""
    retention_days: int | None = Field(default=None, ge=1, le=MOST_LOCK_DAYS)
    """Days for which the gateway locks each anchor, so that nobody can delete it (mode COMPLIANCE);
    the bucket must have Object Lock. Default: the bucket's own default retention."""


class GatewaySettings(Section):
    """Scale of the gateway; on aws also what seals captured prompts and where the ledger is
    anchored, which its role is then allowed to use."""

    min_replicas: int = Field(default=2, ge=1, le=100)
    """Pods that always run. One cannot be rolled or lose a node without a pause."""
    max_replicas: int | None = Field(default=None, ge=1, le=100)
    """Pods at most, when a HorizontalPodAutoscaler adds some for CPU (needs metrics-server).
    Default: 6 on aws; on existing, as many as minReplicas and no autoscaler."""
    capture_key_arn: KeyArn | None = None
    """aws: KMS key that seals captured prompts. Default: the substrate's, if it has one
    (``terrace:aws.keys.captures``), else a key that is born in the cluster."""
    earlier_capture_key_arns: tuple[KeyArn, ...] = ()
    """aws: KMS keys that sealed captured prompts before, until those have ended."""
    anchors: AnchorSettings | None = None
    """aws: where heads of the ledger are anchored; an empty mapping (`{}`) takes the defaults.
    Default: nowhere."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.max_replicas is not None and self.max_replicas < self.min_replicas:
            raise ValueError(
                f"maxReplicas must be minReplicas ({self.min_replicas}) or more; "
                f"got {self.max_replicas}"
            )
        return self


class InvocationLogsSettings(Section):
    """Bedrock's own log of all calls in the stack's region, in CloudWatch. An account has one such
    setting per region: it is taken over, and ``destroy`` turns the logging off. Leave it out where
    others own it. The log is encrypted with the key ``logs`` of the substrate, if there is one."""

    log_retention_days: int = 30
    """Days that the records are kept; one of the numbers that CloudWatch takes."""
    capture_content: bool = False
    """True: prompts and answers are in the records too. False: only who called what, when, with
    how many tokens."""
