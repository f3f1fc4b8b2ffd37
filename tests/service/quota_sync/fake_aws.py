"""Service Quotas and Bedrock's control plane as botocore's clients meet them: paged, signed, per
region (of the signature), with failures by choice and a log of calls."""

import asyncio
import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SIGNATURE = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[A-Z0-9]+/\d{8}/(?P<region>[a-z0-9-]+)/(?P<service>[a-z]+)"
    r"/aws4_request, SignedHeaders=[a-z0-9;-]+, Signature=[0-9a-f]{64}"
)
PAGE = 3
NOISE = [
    ("L-NOISE1", "Agents per account", 1000.0),
    ("L-NOISE2", "On-demand latency-optimized model inference tokens per minute for Nova", 1.0),
    ("L-NOISE3", "Batch inference job size (in GB) for Amazon Nova Pro", 5.0),
    ("L-NOISE4", "On-demand model inference requests per minute for Amazon Nova Pro", 3.0),
]  # fmt: skip


REFUSALS = {
    "throttle": (429, "ThrottlingException"),
    "error": (500, "InternalFailure"),
    "denied": (403, "AccessDeniedException"),
}
BODIES = {"garbage": "<html>not AWS</html>", "empty": "{}"}


@dataclass
class Region:
    """What one region answers. ``failures``: operation -> throttle, error, garbage, hang, reset."""

    applied: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    defaults: dict[str, tuple[str, Any]] = field(default_factory=dict[str, tuple[str, Any]])
    models: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    profiles: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    denied: set[str] = field(default_factory=set[str])
    failures: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class AwsCall:
    """One call. ``signed`` is whether it carried a whole signature for its service."""

    region: str
    operation: str
    signed: bool
    page: str | None


class FakeAws:
    """Start it with ``start``; set ``regions``; read ``calls``."""

    def __init__(self) -> None:
        self.regions: dict[str, Region] = {}
        self.calls: list[AwsCall] = []
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self, address: str = "127.0.0.1") -> None:
        app = web.Application()
        app.router.add_post("/", self._quotas)
        app.router.add_get("/foundation-models", self._models)
        app.router.add_get("/inference-profiles", self._profiles)
        app.router.add_get("/inference-profiles/{name:.+}", self._profile)
        app.router.add_get("/foundation-model-availability/{model}", self._availability)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, address, 0)
        await site.start()
        self.url = f"http://{address}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def count(self, operation: str, region: str | None = None) -> int:
        return sum(
            call.operation == operation and region in (None, call.region) for call in self.calls
        )

    def environment(self) -> dict[str, str]:
        """Of a process, or a test, that talks to this and to no other AWS."""
        return {
            "AWS_ENDPOINT_URL_SERVICE_QUOTAS": self.url,
            "AWS_ENDPOINT_URL_BEDROCK": self.url,
            "AWS_ACCESS_KEY_ID": "AKIACANARY0123456789",
            "AWS_SECRET_ACCESS_KEY": "canary-aws-secret-0123456789",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        }

    async def _enter(
        self, request: web.Request, operation: str, service: str, page: str | None = None
    ) -> tuple[Region, web.StreamResponse | None]:
        found = SIGNATURE.fullmatch(request.headers.get("authorization", ""))
        signed = found is not None and found["service"] == service
        name = found["region"] if found is not None else ""
        self.calls.append(AwsCall(name, operation, signed, page))
        region = self.regions.get(name, Region())
        failure = region.failures.get(operation)
        if not signed:
            return region, _error(403, "MissingAuthenticationTokenException")
        if failure in REFUSALS:
            return region, _error(*REFUSALS[failure])
        if failure in BODIES:
            return region, web.Response(text=BODIES[failure], content_type="application/json")
        if failure == "reset" and request.transport is not None:
            request.transport.abort()
        if failure == "hang":
            await asyncio.sleep(30)
        return region, None

    async def _quotas(self, request: web.Request) -> web.StreamResponse:
        operation = request.headers.get("x-amz-target", "").rsplit(".", maxsplit=1)[-1]
        body = json.loads(await request.read())
        page = body.get("NextToken")
        region, failed = await self._enter(request, operation, "servicequotas", page)
        if failed is not None:
            return failed
        assert body["ServiceCode"] == "bedrock"
        own = region.applied if operation == "ListServiceQuotas" else region.defaults
        rows = [
            {"ServiceCode": "bedrock", "QuotaCode": code, "QuotaName": name, "Value": value,
             "Unit": "None", "Adjustable": True, "GlobalQuota": False}
            for code, (name, value) in own.items()
        ]  # fmt: skip
        if operation == "ListAWSDefaultServiceQuotas":
            rows += [{"QuotaCode": c, "QuotaName": n, "Value": v} for c, n, v in NOISE]
        start = int(page or 0)
        answer: dict[str, Any] = {"Quotas": rows[start : start + PAGE]}
        if start + PAGE < len(rows):
            answer["NextToken"] = str(start + PAGE)
            if region.failures.get("second page") == "error":
                answer["NextToken"] = "broken"
        if page == "broken":
            return _error(500, "InternalFailure")
        return web.json_response(answer, content_type="application/x-amz-json-1.1")

    async def _models(self, request: web.Request) -> web.StreamResponse:
        region, failed = await self._enter(request, "ListFoundationModels", "bedrock")
        return failed or web.json_response(
            {
                "modelSummaries": [
                    {"modelId": model, "modelArn": f"arn:aws:bedrock:r::foundation-model/{model}",
                     "providerName": vendor, "modelName": name}
                    for model, vendor, name in region.models
                ]
            }
        )  # fmt: skip

    async def _profiles(self, request: web.Request) -> web.StreamResponse:
        region, failed = await self._enter(request, "ListInferenceProfiles", "bedrock")
        summaries = [_profile(name, models) for name, models in region.profiles.items()]
        return failed or web.json_response({"inferenceProfileSummaries": summaries})

    async def _profile(self, request: web.Request) -> web.StreamResponse:
        region, failed = await self._enter(request, "GetInferenceProfile", "bedrock")
        if failed is not None:
            return failed
        name = request.match_info["name"]
        if name not in region.profiles:
            return _error(404, "ResourceNotFoundException")
        return web.json_response(_profile(name, region.profiles[name]))

    async def _availability(self, request: web.Request) -> web.StreamResponse:
        region, failed = await self._enter(request, "GetFoundationModelAvailability", "bedrock")
        model = request.match_info["model"]
        denied = model in region.denied
        return failed or web.json_response(
            {
                "modelId": model,
                "agreementAvailability": {"status": "AVAILABLE"},
                "authorizationStatus": "NOT_AUTHORIZED" if denied else "AUTHORIZED",
                "entitlementAvailability": "AVAILABLE",
                "regionAvailability": "AVAILABLE",
            }
        )

    def operations(self) -> Counter[str]:
        return Counter(call.operation for call in self.calls)


def _profile(name: str, models: list[str]) -> dict[str, Any]:
    return {
        "inferenceProfileId": name,
        "inferenceProfileArn": name if name.startswith("arn:") else f"arn:aws:bedrock:r:1:p/{name}",
        "inferenceProfileName": name, "status": "ACTIVE", "type": "SYSTEM_DEFINED",
        "models": [{"modelArn": model} for model in models],
    }  # fmt: skip


def _error(status: int, code: str) -> web.Response:
    return web.json_response(
        {"__type": code, "message": "canary-aws-message"}, status=status,
        headers={"x-amzn-errortype": code},
    )  # fmt: skip
