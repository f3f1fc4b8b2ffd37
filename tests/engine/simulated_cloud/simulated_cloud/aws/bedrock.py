"""Bedrock: invocation logging, inference profiles, and look-ups of models."""

from typing import Any, Final

from ..inventory import Item
from ..models import CloudError, Link
from ..rules import matches
from ..schema_check import nearest
from ..values import Properties, first, known
from ..world import World
from .bedrock_models import Model, offered, profiles
from .iam.roles import refuse_missing_role, refuse_wrong_trust
from .logs import refuse_missing_log_group
from .model import ArnOf, AwsModel, digest

PROFILE: Final = "aws:bedrock/inferenceProfile:InferenceProfile"
BUCKET: Final = "aws:s3/bucket:Bucket"
_TIME: Final = "2026-01-01T00:00:00Z"


class InvocationLoggingConfiguration(AwsModel):
    """One per account and region. A second one takes over in AWS without a word; here it is
    refused."""

    token = "aws:bedrockmodel/invocationLoggingConfiguration:InvocationLoggingConfiguration"
    arns = (ArnOf("loggingConfig.cloudwatchConfig.roleArn", "iam", "role/.+"),)
    links = (
        Link("loggingConfig.s3Config.bucketName", BUCKET, not_found="ValidationException"),
        Link(
            "loggingConfig.cloudwatchConfig.largeDataDeliveryS3Config.bucketName",
            BUCKET,
            not_found="ValidationException",
        ),
    )
    duplicate_code = "SimulatedConflict"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        return str(world.place.region)

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        where = "loggingConfig.cloudwatchConfig"
        if not first(inputs, where) and not first(inputs, "loggingConfig.s3Config"):
            raise CloudError(
                "ValidationException",
                "loggingConfig: one of cloudwatchConfig, s3Config is required",
            )
        for path, name in known(inputs, f"{where}.logGroupName"):
            refuse_missing_log_group(name, path, world)
        for path, arn in known(inputs, f"{where}.roleArn"):
            refuse_missing_role(arn, path, world)
            refuse_wrong_trust(arn, "bedrock.amazonaws.com", path, world)
            if not _may_write_logs(arn, world):
                raise CloudError(
                    "ValidationException",
                    f"{path}: failed to validate permissions: {arn} may not logs:PutLogEvents",
                )


class InferenceProfile(AwsModel):
    token = PROFILE
    rules = (
        matches(
            "name",
            r"([0-9a-zA-Z][ _-]?){1,64}",
            "letters and digits with single spaces, _ or - between",
        ),
    )
    arns = (ArnOf("modelSource.copyFrom", "bedrock", "(foundation-model|inference-profile)/.+"),)
    replace_on = frozenset({"name", "description", "modelSource"})
    unique = (("name",),)
    duplicate_code = "ConflictException"

    def identify(self, inputs: Properties, name: str, world: World) -> str:
        code = digest(world.place.scope("region"), str(inputs.get("name") or name), length=12)
        return str(world.place.arn("bedrock", f"application-inference-profile/{code}"))

    def refuse(self, inputs: Properties, world: World, existing: Item | None) -> None:
        source = str(first(inputs, "modelSource.copyFrom", ""))
        if not source:
            raise CloudError("ValidationException", "modelSource.copyFrom is required")
        _models_of(source, world)

    def outputs(self, inputs: Properties, id: str, world: World) -> Properties:
        source = str(first(inputs, "modelSource.copyFrom", ""))
        return {
            "arn": id,
            "status": "ACTIVE",
            "type": "APPLICATION",
            "createdAt": _TIME,
            "updatedAt": _TIME,
            "models": [{"modelArn": arn} for arn in _models_of(source, world)],
        }


def model_arn(model: Model, region: str, world: World) -> str:
    """`arn:aws:bedrock:us-east-1::foundation-model/...`; the region is empty for the rest of the
    world of a global profile."""
    return f"arn:{world.place.partition}:bedrock:{region}::foundation-model/{model.id}"


def _may_write_logs(role_arn: str, world: World) -> bool:
    names = {role_arn, role_arn.rsplit("/", 1)[-1]}
    if world.get(role_arn) is None:
        return True  # of another account, cannot be seen
    policies = [
        item["policy"]
        for item in world.all("aws:iam/rolePolicy:RolePolicy")
        if item["role"] in names
    ]
    attached = any(
        item["role"] in names
        for item in world.all("aws:iam/rolePolicyAttachment:RolePolicyAttachment")
    )
    return attached or any(
        "logs:PutLogEvents" in str(policy) or "logs:*" in str(policy) for policy in policies
    )


def _models_of(source: str, world: World) -> list[str]:
    """ARNs of the foundation models behind a model or profile ARN."""
    kind, _, name = source.split(":", 5)[5].partition("/")
    if kind == "foundation-model":
        if name not in {model.id for model in offered(world.place.region)}:
            raise CloudError("ValidationException", _not_offered(name, world))
        return [source]
    if name not in profiles(world.place.region):
        raise CloudError(
            "ResourceNotFoundException",
            f"inference profile {name} is not found in {world.place.region}",
        )
    model, regions = profiles(world.place.region)[name]
    return [model_arn(model, region, world) for region in regions]


def _not_offered(name: str, world: World) -> str:
    valid = [model.id for model in offered(world.place.region)]
    return (
        f"the provided model identifier {name} is invalid in {world.place.region};"
        f" {nearest(name, valid)}"
    )


def _model_summary(model: Model, world: World) -> Properties:
    region = world.place.region
    kinds = (["ON_DEMAND"] if region in model.on_demand else []) + (
        ["INFERENCE_PROFILE"] if model.profiles else []
    )
    return {
        "modelId": model.id,
        "modelArn": model_arn(model, region, world),
        "modelName": model.name,
        "providerName": model.provider,
        "customizationsSupporteds": [],
        "inferenceTypesSupporteds": kinds,
        "inputModalities": ["TEXT"],
        "outputModalities": list(model.output),
        "responseStreamingSupported": "TEXT" in model.output,
    }


def get_model(arguments: Properties, world: World) -> Properties:
    wanted = str(arguments["modelId"]).rsplit("/", 1)[-1]
    for model in offered(world.place.region):
        if model.id == wanted:
            return {**_model_summary(model, world), "id": model.id, "region": world.place.region}
    raise CloudError("ValidationException", _not_offered(wanted, world))


def get_models(arguments: Properties, world: World) -> Properties:
    found = [_model_summary(model, world) for model in offered(world.place.region)]
    filters = {
        "byInferenceType": "inferenceTypesSupporteds",
        "byOutputModality": "outputModalities",
        "byProvider": "providerName",
    }
    for name, field in filters.items():
        wanted = arguments.get(name)
        if wanted:
            found = [
                model
                for model in found
                if (
                    wanted.lower() == model[field].lower()
                    if name == "byProvider"
                    else wanted in model[field]
                )
            ]
    return {
        **arguments,
        "id": world.place.region,
        "modelSummaries": found,
        "region": world.place.region,
    }


def _system_profile(id: str, world: World) -> dict[str, Any]:
    model, regions = profiles(world.place.region)[id]
    area = id.split(".", 1)[0].upper()
    return {
        "inferenceProfileId": id,
        "inferenceProfileArn": world.place.arn("bedrock", f"inference-profile/{id}"),
        "inferenceProfileName": f"{area} {model.provider} {model.name}",
        "description": f"Routes requests to {model.name}",
        "models": [{"modelArn": model_arn(model, region, world)} for region in regions],
        "status": "ACTIVE",
        "type": "SYSTEM_DEFINED",
        "createdAt": _TIME,
        "updatedAt": _TIME,
    }


def _own_profile(item: Item) -> dict[str, Any]:
    return {
        "inferenceProfileId": item.id.rsplit("/", 1)[1],
        "inferenceProfileArn": item.id,
        "inferenceProfileName": item["name"],
        "description": item["description"] or "",
        "models": item["models"],
        "status": "ACTIVE",
        "type": "APPLICATION",
        "createdAt": _TIME,
        "updatedAt": _TIME,
    }


def get_inference_profile(arguments: Properties, world: World) -> Properties:
    wanted = str(arguments["inferenceProfileId"])
    short = wanted.rsplit("/", 1)[-1]
    for item in world.all(PROFILE):
        if wanted == item.id or short == item.id.rsplit("/", 1)[1]:
            return {**_own_profile(item), "region": world.place.region}
    if short in profiles(world.place.region):
        return {**_system_profile(short, world), "region": world.place.region}
    raise CloudError(
        "ResourceNotFoundException",
        f"inference profile {wanted} is not found in {world.place.region};"
        f" {nearest(short, list(profiles(world.place.region)))}",
    )


def get_inference_profiles(arguments: Properties, world: World) -> Properties:
    wanted = arguments.get("type")
    found = (
        [_system_profile(id, world) for id in profiles(world.place.region)]
        if wanted in (None, "SYSTEM_DEFINED")
        else []
    )
    if wanted in (None, "APPLICATION"):
        found += [_own_profile(item) for item in world.all(PROFILE)]
    return {**arguments, "inferenceProfileSummaries": found, "region": world.place.region}


MODELS = (InvocationLoggingConfiguration, InferenceProfile)
FUNCTIONS = {
    "aws:bedrockfoundation/getModel:getModel": get_model,
    "aws:bedrockfoundation/getModels:getModels": get_models,
    "aws:bedrock/getInferenceProfile:getInferenceProfile": get_inference_profile,
    "aws:bedrock/getInferenceProfiles:getInferenceProfiles": get_inference_profiles,
}
