"""Reads one region with botocore's own clients. Blocking: give it a thread."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import botocore.session  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import (  # pyright: ignore[reportMissingTypeStubs]
    BotoCoreError,
    ClientError,
)

from terrace_common.governance.upstream_pools import UpstreamPool
from terrace_quota_sync.quota_names import parse_quota_name
from terrace_quota_sync.region_facts import Access, Quota, RegionFacts, quota_of

SERVICE = "bedrock"
MAX_PAGES = 200  # Bedrock has some 1500 quotas, 100 on a page

# What a fake or a broken answer can make botocore raise besides its own errors.
FAILURES = (BotoCoreError, ClientError, OSError, KeyError, TypeError, ValueError, AttributeError)


class RegionUnreadError(Exception):
    """The quotas of the region could not be read whole. ``throttled``: AWS asks for patience."""

    def __init__(self, region: str, why: str, *, throttled: bool = False) -> None:
        super().__init__(f"{region}: {why}")
        self.throttled = throttled


@dataclass
class RegionReader:
    """Reads quotas, models' names, profiles and access of regions."""

    now: Callable[[], float]
    """A clock that runs during suspend."""
    config: Config = field(
        default_factory=lambda: Config(
            connect_timeout=5,
            read_timeout=20,
            # The waits between readings are ours; this is for a lost packet.
            retries={"mode": "standard", "total_max_attempts": 2},
        )
    )

    def __post_init__(self) -> None:
        self._session: Any = None
        self._making = threading.Lock()  # a session makes one client at a time

    def _client(self, service: str, region: str) -> Any:
        with self._making:
            if self._session is None:
                self._session = cast("Any", botocore.session.Session())
            return self._session.create_client(service, region, config=self.config)

    def read(self, region: str, pools: Iterable[UpstreamPool]) -> RegionFacts:
        """One reading. Raises ``RegionUnreadError``; parts beside the quotas may be missing and are
        told in ``problems``."""
        begun_at = self.now()
        problems: list[str] = []
        quotas = self._quotas(region, problems)
        try:
            bedrock = self._client(SERVICE, region)
        except FAILURES as error:
            return RegionFacts(region, begun_at, quotas, problems=(_part("bedrock", error),))
        try:
            mine = tuple(pools)
            names = _tried("models", problems, lambda: _model_names(bedrock))
            profiles = _tried("profiles", problems, lambda: _profiles(bedrock))
            for arn in sorted({arn for pool in mine for arn in pool.profile_arns} - set(profiles)):
                profiles |= _tried("profile", problems, lambda arn=arn: _profile(bedrock, arn))
            access: dict[str, Access] = {}
            for model_id in sorted({pool.base_model for pool in mine if pool.kind != "region"}):
                access |= _tried("access", problems, lambda one=model_id: _access(bedrock, one))
        finally:
            bedrock.close()
        return RegionFacts(
            region, begun_at, quotas, names, profiles, access, tuple(dict.fromkeys(problems))
        )

    def _quotas(self, region: str, problems: list[str]) -> tuple[Quota, ...]:
        """Applied values, and AWS's defaults for what the account has no value of its own."""
        try:
            client = self._client("service-quotas", region)
            try:
                applied = _pages(client, "list_service_quotas", "applied", problems)
                defaults = _pages(client, "list_aws_default_service_quotas", "default", problems)
            finally:
                client.close()
        except FAILURES as error:
            raise RegionUnreadError(region, _why(error), throttled=_throttled(error)) from error
        merged = {**defaults, **applied}
        if not any(parse_quota_name(quota.name) for quota in merged.values()):
            # AWS names hundreds; an answer without one is not an answer.
            raise RegionUnreadError(region, "no quota of a model was answered")
        return tuple(merged[code] for code in sorted(merged))


def _pages(
    client: Any, operation: str, source: Literal["applied", "default"], problems: list[str]
) -> dict[str, Quota]:
    found: dict[str, Quota] = {}
    pages: Iterable[Mapping[str, Any]] = client.get_paginator(operation).paginate(
        ServiceCode=SERVICE
    )
    for number, page in enumerate(pages):
        if number >= MAX_PAGES:
            raise ValueError("the list has no end")
        for answer in page["Quotas"]:
            quota = quota_of(answer, source)
            if quota is None:
                problems.append(f"{source} quota that makes no sense")
            else:
                found[quota.code] = quota
    return found


def _model_names(bedrock: Any) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {}
    for model in bedrock.list_foundation_models()["modelSummaries"]:
        vendor, name = str(model.get("providerName", "")), str(model.get("modelName", ""))
        if vendor and name:
            names[str(model["modelId"])] = (f"{vendor} {name}",)
    return names


def _profiles(bedrock: Any) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    paginator = bedrock.get_paginator("list_inference_profiles")
    for page in paginator.paginate(typeEquals="SYSTEM_DEFINED"):
        for profile in page["inferenceProfileSummaries"]:
            found |= _leads_to(profile)
    return found


def _profile(bedrock: Any, arn: str) -> dict[str, tuple[str, ...]]:
    return _leads_to(bedrock.get_inference_profile(inferenceProfileIdentifier=arn))


def _leads_to(profile: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    arns = tuple(sorted(str(model["modelArn"]) for model in profile["models"]))
    return {str(profile[key]): arns for key in ("inferenceProfileId", "inferenceProfileArn")}


def _access(bedrock: Any, model_id: str) -> dict[str, Access]:
    answer = bedrock.get_foundation_model_availability(modelId=model_id)
    said = (
        answer["agreementAvailability"]["status"],
        answer["authorizationStatus"],
        answer["entitlementAvailability"],
        answer["regionAvailability"],
    )
    if said == ("AVAILABLE", "AUTHORIZED", "AVAILABLE", "AVAILABLE"):
        return {model_id: "available"}
    denied = {"NOT_AVAILABLE", "NOT_AUTHORIZED"} & set(said)
    return {model_id: "denied" if denied else "unknown"}


def _tried(part: str, problems: list[str], read: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return read()
    except FAILURES as error:
        problems.append(_part(part, error))
        return {}


def _part(part: str, error: Exception) -> str:
    return f"{part}: {_why(error)}"


def _why(error: Exception) -> str:
    """An error's kind; never its text, which may have an account's or a key's id."""
    if isinstance(error, ClientError):
        response = cast("Mapping[str, Any]", error.response)
        return str(response.get("Error", {}).get("Code", "ClientError"))[:64]
    return type(error).__name__


def _throttled(error: Exception) -> bool:
    return _why(error) in {
        "ThrottlingException", "TooManyRequestsException", "Throttling", "RequestLimitExceeded",
    }  # fmt: skip
