"""What a made-up account is told of Bedrock, for two regions."""

from typing import Any

from .cloud import ACCOUNT, PARTITION, Cloud

CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"
NOVA = "amazon.nova-lite-v1:0"
TITAN = "amazon.titan-text-express-v1"
APPLICATION = (
    f"arn:{PARTITION}:bedrock:eu-west-1:{ACCOUNT}:application-inference-profile/abc123def456"
)
PROFILES = {
    "eu-west-1": {
        f"eu.{CLAUDE}": ("eu-west-1", "eu-central-1", "eu-north-1"),
        f"global.{CLAUDE}": ("eu-west-1", ""),
        f"eu.{NOVA}": ("eu-west-1", "eu-central-1"),
    },
    "us-east-1": {f"us.{CLAUDE}": ("us-east-1", "us-west-2")},
}
# Only through a profile, both ways, only by itself.
TYPES = {
    CLAUDE: ["INFERENCE_PROFILE"],
    NOVA: ["ON_DEMAND", "INFERENCE_PROFILE"],
    TITAN: ["ON_DEMAND"],
}


def foundation(region: str, model: str, partition: str = PARTITION) -> str:
    return f"arn:{partition}:bedrock:{region}::foundation-model/{model}"


def profile_arn(region: str, profile: str, partition: str = PARTITION) -> str:
    return f"arn:{partition}:bedrock:{region}:{ACCOUNT}:inference-profile/{profile}"


def answer_for_bedrock(cloud: Cloud, *, partition: str = PARTITION) -> None:
    def models(args: dict[str, Any]) -> dict[str, Any]:
        region = args["region"]
        return {
            "id": region,
            "region": region,
            "modelSummaries": [
                {
                    "modelId": model,
                    "modelArn": foundation(region, model, partition),
                    "modelName": model,
                    "providerName": model.partition(".")[0],
                    "inferenceTypesSupporteds": types,
                    "customizationsSupporteds": [],
                    "inputModalities": ["TEXT"],
                    "outputModalities": ["TEXT"],
                    "responseStreamingSupported": True,
                }
                for model, types in TYPES.items()
            ],
        }

    def summary(region: str, profile: str, destinations: tuple[str, ...]) -> dict[str, Any]:
        model = profile.partition(".")[2]
        return {
            "inferenceProfileId": profile,
            "inferenceProfileArn": profile_arn(region, profile, partition),
            "inferenceProfileName": profile,
            "description": "",
            "status": "ACTIVE",
            "type": "SYSTEM_DEFINED",
            "createdAt": "",
            "updatedAt": "",
            "models": [{"modelArn": foundation(to, model, partition)} for to in destinations],
        }

    def profiles(args: dict[str, Any]) -> dict[str, Any]:
        assert args["type"] == "SYSTEM_DEFINED"
        region = args["region"]
        made = [summary(region, name, to) for name, to in PROFILES.get(region, {}).items()]
        return {"id": region, "region": region, "inferenceProfileSummaries": made}

    def application(args: dict[str, Any]) -> dict[str, Any]:
        arn = args["inferenceProfileId"]
        return {
            **summary(args["region"], f"eu.{CLAUDE}", ("eu-west-1", "eu-central-1")),
            "id": arn,
            "region": args["region"],
            "inferenceProfileId": arn.rpartition("/")[2],
            "inferenceProfileArn": arn,
            "type": "APPLICATION",
        }

    cloud.answers |= {
        "aws:bedrockfoundation/getModels:getModels": models,
        "aws:bedrock/getInferenceProfiles:getInferenceProfiles": profiles,
        "aws:bedrock/getInferenceProfile:getInferenceProfile": application,
    }
