"""The right to call exactly the Bedrock models and guardrails of a spec, for a service account."""

from collections.abc import Callable, Mapping
from typing import Any, NotRequired, TypedDict, TypeVar

import pulumi
import pulumi_aws as aws
from pydantic import Field

from terrace_common.governance import (
    BedrockGuardrail,
    BedrockProvider,
    Governance,
    GovernanceError,
    load_governance,
)
from terrace_components.arguments import Arguments, LateArgumentError, Name, Text
from terrace_components.aws.arguments import KeyArn, Tags
from terrace_components.aws.arns import Place, policy_document
from terrace_components.aws.bedrock_catalogue import (
    Offer,
    Route,
    guardrail_arn,
    route_of,
    through_profile,
)
from terrace_components.aws.guard_rights import (
    AnchorRights,
    AnchorRightsArgs,
    anchor_statements,
    capture_statements,
)
from terrace_components.aws.pod_identity import AwsPodIdentity

# Converse and its stream need these two as well; nothing else of Bedrock does the gateway call
# but guardrails.
INVOKE = ["bedrock:InvokeModel", "bedrock:InvokeModelWithResponseStream"]
APPLY = ["bedrock:ApplyGuardrail"]

Wanted = tuple[str, str, str]
"""Name in the spec, Bedrock's own name for it, and region."""
_Found = TypeVar("_Found")


class BedrockAccessArgs(TypedDict):
    """Arguments of ``BedrockAccess``."""

    governance: str
    """The governance spec, YAML. Rights are for the models and the guardrails of its Bedrock
    providers with ``credentials: ambient``, in the regions that these providers name."""
    cluster_name: pulumi.Input[str]
    """Name of the EKS cluster; it must have the add-on ``eks-pod-identity-agent``."""
    namespace: str
    """Namespace of the service account."""
    service_account: str
    """Name of the service account, such as ``gateway``."""
    # what the guard does besides calling models: a service account has one role
    captures_key_arn: NotRequired[pulumi.Input[str]]
    """KMS key that seals captured prompts (``capture_kms_key_arn`` of the guard); default none."""
    earlier_captures_key_arns: NotRequired[list[pulumi.Input[str]]]
    """KMS keys that sealed earlier ones, which may still be opened; default none."""
    anchors: NotRequired[AnchorRightsArgs]
    """Bucket of the ledger's anchors (``anchor_location`` of the guard); default none."""
    tags: NotRequired[dict[str, str]]
    """Tags of everything that is made."""


class _BedrockAccess(Arguments):
    governance: str
    cluster_name: Text
    namespace: Name
    service_account: Name
    captures_key_arn: KeyArn | None = None
    earlier_captures_key_arns: list[KeyArn] = Field(default_factory=list)
    anchors: AnchorRights | None = None
    tags: Tags = Field(default_factory=dict)

    def wanted(self) -> tuple[list[Wanted], list[Wanted]]:
        """The models, and the guardrails, that need rights."""
        try:
            governance: Governance = load_governance(self.governance, "governance")
        except GovernanceError as error:
            raise pulumi.InputPropertyError("governance", str(error)) from None
        regions = {
            provider.name: provider.region
            for provider in governance.providers
            if isinstance(provider, BedrockProvider) and provider.credentials == "ambient"
        }
        models = [
            (model.name, model.upstream_model, regions[model.provider])
            for model in governance.models
            if model.provider in regions
        ]
        guardrails = [
            (item.name, item.guardrail_id, regions[item.provider])
            for item in governance.guardrails
            if isinstance(item, BedrockGuardrail) and item.provider in regions
        ]
        if not (models or guardrails or self.of_the_guard):
            raise pulumi.InputPropertyError(
                "governance",
                "has no model on a Bedrock provider with credentials: ambient, and no guardrail, so"
                " that there is nothing to allow; set it on the provider, or leave BedrockAccess"
                " out",
            )
        return models, guardrails

    @property
    def of_the_guard(self) -> bool:
        """Whether there is something to allow besides Bedrock."""
        captures = self.captures_key_arn is not None or self.earlier_captures_key_arns
        return bool(captures) or self.anchors is not None


class BedrockAccess(pulumi.ComponentResource):
    """A role of one service account that may invoke the models and apply the guardrails of the
    spec, and no others.

    AWS itself is asked what each model is. A foundation model may be called in its provider's
    region. An inference profile may be called, and its foundation models in every region that it
    sends calls to, through that profile only. A model that the region does not offer is an error
    that names what it offers. A guardrail is allowed by its id in this account, or by its ARN;
    whether there is one, AWS is not asked. Where the guard seals captured prompts with a KMS key or
    anchors its ledger in a bucket, the role may do that too, with that key and below ``anchors/``
    of that bucket only.

    Creates: AwsPodIdentity.
    """

    role_arn: pulumi.Output[str]
    """ARN of the role; known when pods of the service account have it."""
    model_arns: pulumi.Output[list[str]]
    """Everything that may be invoked, sorted: profiles, and foundation models in each region."""

    def __init__(
        self,
        name: str,
        args: BedrockAccessArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:BedrockAccess", name, None, opts)
        given = _BedrockAccess.of(args)
        wanted, guardrails = given.wanted()
        offers = {region: _offer(self, region) for region in sorted({r for _, _, r in wanted})}
        applications = {
            (upstream, region): _application(self, upstream, region)
            for _, upstream, region in wanted
            if ":application-inference-profile/" in upstream
        }
        routes: list[pulumi.Output[Route]] = [
            applications[upstream, region].apply(
                lambda profile, model=model, region=region: _told(
                    through_profile, model, region, profile
                )
            )
            if (upstream, region) in applications
            else offers[region].apply(
                lambda offer, model=model, upstream=upstream: _told(
                    route_of, model, upstream, offer
                )
            )
            for model, upstream, region in wanted
        ]
        every = pulumi.Output.from_input(routes)
        applied = _guardrails(self, guardrails)
        others = _of_the_guard(self, given)
        identity = AwsPodIdentity(
            name,
            {
                "cluster_name": given.cluster_name,
                "namespace": given.namespace,
                "service_account": given.service_account,
                "policy": pulumi.Output.all(every, applied).apply(
                    lambda found: policy_document(*statements(found[0], found[1]), *others)
                ),
                "tags": given.tags,
            },
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.role_arn = identity.role_arn
        self.model_arns = every.apply(
            lambda found: sorted({arn for route in found for arn in route.arns})
        )
        self.register_outputs({"roleArn": self.role_arn, "modelArns": self.model_arns})


def statements(routes: list[Route], guardrails: list[str]) -> list[Mapping[str, Any]]:
    """The statements of the policy, in an order that does not depend on that of the spec."""
    direct = sorted({arn for route in routes if route.profile is None for arn in route.models})
    made: list[Mapping[str, Any]] = []
    if direct:
        made.append({"Sid": "FoundationModels", "Action": INVOKE, "Resource": direct})
    profiles = {route.profile: route for route in routes if route.profile is not None}
    if profiles:
        made.append({"Sid": "InferenceProfiles", "Action": INVOKE, "Resource": sorted(profiles)})
    for number, (profile, route) in enumerate(sorted(profiles.items()), start=1):
        made.append(
            {
                "Sid": f"ThroughProfile{number}",
                "Action": INVOKE,
                "Resource": sorted(route.models),
                "Condition": {"ArnEquals": {"bedrock:InferenceProfileArn": profile}},
            }
        )
    if guardrails:
        made.append({"Sid": "Guardrails", "Action": APPLY, "Resource": sorted({*guardrails})})
    return made


def _of_the_guard(component: pulumi.Resource, given: _BedrockAccess) -> list[Mapping[str, Any]]:
    made = capture_statements(given.captures_key_arn, given.earlier_captures_key_arns)
    if given.anchors is not None:
        made += anchor_statements(given.anchors, Place.of(component).partition)
    return made


def _guardrails(component: pulumi.Resource, wanted: list[Wanted]) -> pulumi.Output[list[str]]:
    if not wanted:
        return pulumi.Output.from_input([])
    place = Place.of(component)
    return pulumi.Output.all(place.partition, place.account).apply(
        lambda known: [
            _told(guardrail_arn, name, identifier, region, *known)
            for name, identifier, region in wanted
        ]
    )


def _offer(component: pulumi.Resource, region: str) -> pulumi.Output[Offer]:
    opts = pulumi.InvokeOutputOptions(parent=component)
    return pulumi.Output.all(
        aws.bedrockfoundation.get_models_output(region=region, opts=opts),
        aws.bedrock.get_inference_profiles_output(region=region, type="SYSTEM_DEFINED", opts=opts),
    ).apply(
        lambda answers: Offer(
            region=region,
            models={
                model.model_id: (model.model_arn, "ON_DEMAND" in model.inference_types_supporteds)
                for model in answers[0].model_summaries
            },
            profiles={
                profile.inference_profile_id: Route(
                    profile=profile.inference_profile_arn,
                    models=frozenset(model.model_arn for model in profile.models),
                )
                for profile in answers[1].inference_profile_summaries
                if profile.status == "ACTIVE"
            },
        )
    )


def _application(component: pulumi.Resource, arn: str, region: str) -> pulumi.Output[Route]:
    return aws.bedrock.get_inference_profile_output(
        inference_profile_id=arn,
        region=region,
        opts=pulumi.InvokeOutputOptions(parent=component),
    ).apply(
        lambda profile: Route(
            profile=profile.inference_profile_arn if profile.status == "ACTIVE" else None,
            models=frozenset(model.model_arn for model in profile.models),
        )
    )


def _told(find: Callable[..., _Found], *args: Any) -> _Found:
    """``find(*args)``, whose ``ValueError`` is one of the argument ``governance``."""
    try:
        return find(*args)
    except ValueError as problem:
        raise LateArgumentError("governance", str(problem)) from None
