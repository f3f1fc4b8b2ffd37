"""Admin routes of the catalogue in force, and of why a request goes where it goes."""

from typing import Any

import structlog
from pydantic import BaseModel, ConfigDict, Field

from terrace_common.governance.catalogue import ModelFeature, SurfaceName
from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.admin.admission import still_admitted
from terrace_gateway.admin.audit import record
from terrace_gateway.admin.routing import AdminCall, AdminRoute
from terrace_gateway.calls.ports import EffectivePolicy, MatchRequest, Needs
from terrace_gateway.edge.errors import MODEL_NOT_ALLOWED, MODEL_NOT_FOUND, ApiError
from terrace_gateway.matching import Excluded, NoCandidateError, parse_hints
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.runtime import Runtime

log = structlog.get_logger()


class Explain(BaseModel):
    """A request as the matcher sees it. Without ``key_id`` nothing is forbidden."""

    model_config = ConfigDict(extra="forbid")

    model: str = Field(min_length=1, max_length=2048)
    surface: SurfaceName = "chat"
    input_bytes: int = Field(default=1000, ge=0, le=10**9, strict=True)
    """Size of the request: the most input tokens that it can have."""
    max_output_tokens: int | None = Field(default=None, ge=1, le=10**9, strict=True)
    features: list[ModelFeature] = Field(default_factory=list[ModelFeature])
    hints: str = Field(default="", max_length=1024)
    session: str | None = Field(default=None, max_length=256)
    key_id: str | None = Field(default=None, max_length=128)
    request_id: str = Field(default="explained", max_length=128)
    """Decides on which side of a canary the request falls."""


class Thaw(BaseModel):
    """Body of ``POST /admin/v1/models/{name}/thaw``."""

    model_config = ConfigDict(extra="forbid")

    reason: str | None = Field(default=None, min_length=1, max_length=512)


class Models:
    """Endpoints of the catalogue."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list_models(self, _: AdminCall) -> dict[str, Any]:
        """The catalogue with prices."""
        snapshot = self._runtime.policy.current().snapshot
        return {
            "price_version": snapshot.price_version,
            "governance_version": snapshot.version,
            "not_deployed": sorted(snapshot.undeployed),
            "models": [model.model_dump(mode="json") for model in snapshot.governance.models],
        }

    async def explain(self, call: AdminCall) -> dict[str, Any]:
        """Which candidates a request has and why, of every model. Calls and reserves nothing."""
        body = await call.read(Explain)
        snapshot = self._runtime.policy.current().snapshot
        policy = _policy(snapshot, body.key_id)
        session = body.session
        if session is not None:
            session = f"{body.key_id}:{session}"
        try:
            explanation = self._runtime.matcher.explain(
                MatchRequest(
                    asked=body.model,
                    needs=Needs(
                        body.surface,
                        body.input_bytes,
                        body.max_output_tokens,
                        frozenset(body.features),
                    ),
                    hints=parse_hints(body.hints),
                    session=session,
                    bedrock_only=body.surface == "converse",
                ),
                policy,
                request_id=body.request_id,
                excluded=Excluded(
                    models=snapshot.killed_models | snapshot.undeployed,
                    providers=snapshot.killed_providers,
                ),
            )
        except NoCandidateError as error:  # hints that are wrong
            raise ApiError(error.code, error.message, param="hints") from None
        return {"policies": list(policy.names), **explanation.as_dict()}

    async def thaw(self, call: AdminCall) -> dict[str, Any]:
        """Let a deployment that was frozen after an overrun take requests, on this replica."""
        runtime, name = self._runtime, call.path["name"]
        body = await call.read(Thaw)
        model = runtime.policy.current().snapshot.governance.find_model(name)
        if model is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such model", param="name")
        health = runtime.matcher.health
        thawed = health.is_frozen(model.name)
        if thawed:
            async with runtime.database.connection() as connection, connection.transaction():
                await still_admitted(connection, call.admission)
                await record(
                    connection, actor=call.actor, action="model.thaw",
                    subject=f"model:{model.name}", reason=body.reason,
                    detail={"replica": runtime.settings.replica},
                )  # fmt: skip
            health.thaw(model.name)  # what is not recorded is not done
        log.warning("thawed", model=model.name, actor=call.actor, was_frozen=thawed)
        return {"model": model.name, "thawed": thawed}


def _policy(snapshot: Snapshot, key_id: str | None) -> EffectivePolicy:
    if key_id is None:
        return EffectivePolicy()
    key = snapshot.keys.get(key_id)
    if key is None:
        raise ApiError(MODEL_NOT_FOUND, "there is no such key", param="key_id")
    try:
        return snapshot.principal(key).policy
    except UnknownSubjectError as error:
        raise ApiError(MODEL_NOT_ALLOWED, f"the key is orphaned: {error}", param="key_id") from None


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of the catalogue."""
    models = Models(runtime)
    return [
        AdminRoute("GET", "/models", models.list_models, "The catalogue with prices.", "viewer",
                   answer="`models`, `price_version`, and what the translator does not serve."),
        AdminRoute("POST", "/models/explain", models.explain,
                   "Which models could serve a request, and why.", "viewer", body=Explain,
                   answer="`chosen`, `refusal`, and every model with its rank or reason."),
        AdminRoute("POST", "/models/{name}/thaw", models.thaw,
                   "End the freeze of a deployment whose bill was above its reservation.", "admin",
                   body=Thaw, answer="`model` and `thawed`."),
    ]  # fmt: skip
