"""Admin routes of virtual keys: mint, list, show, rotate, revoke."""

from datetime import UTC, datetime
from typing import Any, Literal

import structlog
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from terrace_common.governance import NAME_PATTERN
from terrace_common.governance.compile import UnknownSubjectError
from terrace_gateway.admin.key_store import (
    KeyConflictError,
    KeyFilter,
    KeyStore,
    NewKeyRow,
    PolicyMovedError,
)
from terrace_gateway.admin.routing import AdminCall, AdminRefusal, AdminRoute, Query
from terrace_gateway.authentication.keys import hash_key, mint_key, mint_key_id
from terrace_gateway.edge.errors import MODEL_NOT_FOUND, ApiError
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import invalid

log = structlog.get_logger()

MAX_MICRO_USD = 10**15
MAX_PAGE = 1000
TRIES = 3
MAX_OVERLAP_SECONDS = 30 * 86_400
FIRST_DAY, LAST_DAY = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

SurfaceName = Literal[
    "chat", "completions", "responses", "messages", "count_tokens", "embeddings", "converse"
]
Feature = Literal["tools", "images", "streaming", "json_schema", "reasoning", "embeddings"]


class NewKey(BaseModel):
    """A key to mint. ``name`` of a declared key makes it that key's secret; else ``team``, ``app``
    or ``user`` says whose it is."""

    model_config = ConfigDict(extra="forbid")

    team: str | None = Field(default=None, pattern=NAME_PATTERN)
    name: str | None = Field(default=None, max_length=128)
    models: list[str] | None = None
    budget_micro_usd: int | None = Field(default=None, ge=0, le=MAX_MICRO_USD, strict=True)
    max_requests: int | None = Field(default=None, ge=0, le=10**12, strict=True)
    requests_per_minute: int | None = Field(default=None, ge=0, le=10**9, strict=True)
    expires_at: AwareDatetime | None = Field(default=None, gt=FIRST_DAY, lt=LAST_DAY)
    app: str | None = Field(default=None, pattern=NAME_PATTERN)
    user: str | None = Field(default=None, pattern=NAME_PATTERN)
    policies: list[str] | None = None
    surfaces: list[SurfaceName] | None = None
    features: list[Feature] | None = None
    reason: str | None = Field(default=None, max_length=512)


class Revocation(BaseModel):
    """Why a key is revoked."""

    model_config = ConfigDict(extra="forbid")

    reason: str | None = Field(default=None, max_length=512)


class Rotation(BaseModel):
    """How long the old secret stays valid beside the new one."""

    model_config = ConfigDict(extra="forbid")

    overlap_seconds: int = Field(default=0, ge=0, le=MAX_OVERLAP_SECONDS, strict=True)
    reason: str | None = Field(default=None, max_length=512)


class Keys:
    """Endpoints of keys."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._store = KeyStore(runtime.database)

    async def create(self, call: AdminCall) -> dict[str, Any]:
        """Mint a key. The only answer that shows it."""
        body = await call.read(NewKey)
        key, key_id = mint_key(), mint_key_id()
        key_hash = hash_key(self._runtime.secrets.key_pepper, key)
        for _ in range(TRIES):
            # The key must be judged by the version that is in force when it is inserted.
            await self._runtime.policy.refresh()
            snapshot = self._runtime.policy.current().snapshot
            new = self._row(snapshot, body, key_id, key_hash)
            try:
                row = await self._store.create(
                    new, actor=call.actor, reason=body.reason, version=snapshot.version,
                    admission=call.admission,
                )  # fmt: skip
            except PolicyMovedError:
                continue
            except KeyConflictError as error:
                raise AdminRefusal(409, "conflict", str(error)) from None
            log.info("key_created", key_id=key_id, team=new.team)
            return {"key": key, **row}
        raise AdminRefusal(409, "version_conflict", "the governance changes now; try again")

    async def list_keys(self, call: AdminCall) -> dict[str, Any]:
        """A page of keys without their secrets."""
        await self._runtime.key_use.flush()
        limit = call.number("limit", default=MAX_PAGE, low=1, high=MAX_PAGE)
        wanted = KeyFilter(
            team=call.text("team"), app=call.text("app"), user=call.text("user"),
            name=call.text("name"), live=call.flag("live"),
        )  # fmt: skip
        rows = await self._store.page(wanted, after=call.text("after"), limit=limit + 1)
        page = rows[:limit]
        return {"keys": page, "next": page[-1]["key_id"] if len(rows) > limit else None}

    async def show(self, call: AdminCall) -> dict[str, Any]:
        """One key."""
        await self._runtime.key_use.flush()
        row = await self._store.find(call.path["key_id"])
        if row is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such key", param="key_id")
        return row

    async def revoke(self, call: AdminCall) -> dict[str, Any]:
        """Revoke; a second time changes nothing."""
        body = await call.read(Revocation)
        key_id = call.path["key_id"]
        row = await self._store.revoke(
            key_id, actor=call.actor, reason=body.reason, admission=call.admission
        )
        if row is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such key", param="key_id")
        log.info("key_revoked", key_id=key_id)
        return row

    async def rotate(self, call: AdminCall) -> dict[str, Any]:
        """A new secret for the same key: its caps, its spend and its id stay."""
        body = await call.read(Rotation)
        key_id, key = call.path["key_id"], mint_key()
        found = await self._store.rotate(
            key_id, hash_key(self._runtime.secrets.key_pepper, key),
            overlap_seconds=body.overlap_seconds, actor=call.actor, reason=body.reason,
            admission=call.admission,
        )  # fmt: skip
        if found is None:
            raise ApiError(MODEL_NOT_FOUND, "there is no such live key", param="key_id")
        row, old_until = found
        log.info("key_rotated", key_id=key_id)
        return {"key": key, **row, "old_secret_expires_at": old_until}

    def _row(self, snapshot: Snapshot, body: NewKey, key_id: str, key_hash: bytes) -> NewKeyRow:
        spec = snapshot.governance
        declared = next((key for key in spec.keys if key.name == body.name), None)
        if declared is not None and (body.app or body.user):
            raise invalid("the owner of a declared key is in the governance spec", "name")
        policies = {policy.name for policy in spec.policies}
        for name in body.policies or ():
            if name not in policies:
                known = ", ".join(sorted(policies)) or "none"
                raise invalid(f"unknown policy {name!r}; declared: {known}", "policies")
        if body.team is None and declared is None and body.app is None and body.user is None:
            raise invalid(
                "team: Field required, or app, user, or the name of a declared key", "team"
            )
        try:
            standing = snapshot.compiled.standing(
                team=body.team or "", user=body.user, app=body.app,
                key=None if declared is None else declared.name, policies=body.policies or (),
            )  # fmt: skip
        except UnknownSubjectError as error:
            known = ", ".join(sorted(_names(snapshot, error.kind)))
            raise invalid(f"{error}; declared: {known or 'none'}", error.kind) from None
        if body.team is not None and standing.team != body.team:
            raise invalid(f"this key belongs to team {standing.team!r}", "team")
        return NewKeyRow(
            key_id=key_id, key_hash=key_hash, team=standing.team, name=body.name,
            declared=None if declared is None else declared.name, app=body.app, user=body.user,
            models=self._model_names(snapshot, body.models), policies=_sorted(body.policies),
            surfaces=_sorted(body.surfaces), features=_sorted(body.features),
            budget_micro_usd=body.budget_micro_usd, max_requests=body.max_requests,
            requests_per_minute=body.requests_per_minute, expires_at=body.expires_at,
        )  # fmt: skip

    @staticmethod
    def _model_names(snapshot: Snapshot, names: list[str] | None) -> list[str] | None:
        if names is None:
            return None
        found: set[str] = set()
        for name in names:
            model = snapshot.governance.find_model(name)
            if model is None:
                known = ", ".join(model.name for model in snapshot.governance.models)
                raise invalid(f"unknown model {name!r}; known: {known}", "models")
            found.add(model.name)
        return sorted(found)


def _sorted(names: "list[Any] | None") -> list[str] | None:
    return None if names is None else sorted({str(name) for name in names})


def _names(snapshot: Snapshot, kind: str) -> list[str]:
    spec = snapshot.governance
    found = {"team": spec.teams, "user": spec.users, "app": spec.apps, "key": spec.keys}
    return [subject.name for subject in found.get(kind, ())]


def routes(runtime: Runtime) -> list[AdminRoute]:
    """Routes of keys."""
    keys = Keys(runtime)
    filters = (
        Query("team", "Only keys of this team."),
        Query("app", "Only keys of this app."),
        Query("user", "Only keys of this user."),
        Query("name", "Only keys with this name."),
        Query("live", "`true`: neither revoked nor expired."),
        Query("after", "The `next` of the page before."),
        Query("limit", f"At most so many, up to {MAX_PAGE}.", "integer"),
    )
    page = "A page: `keys`, and `next`, the cursor of the following page."
    return [
        AdminRoute("POST", "/keys", keys.create, "Mint a key; the only answer that shows it.",
                   "admin", body=NewKey, answer="The key and its row.", status=201,
                   changes_policy=True),
        AdminRoute("GET", "/keys", keys.list_keys, "Keys by age.", "viewer", query=filters,
                   answer=page),
        AdminRoute("GET", "/keys/{key_id}", keys.show, "One key.", "viewer", answer="The key."),
        AdminRoute("POST", "/keys/{key_id}/revoke", keys.revoke, "Revoke a key at once.",
                   "admin", body=Revocation, answer="The key.", changes_policy=True),
        AdminRoute("POST", "/keys/{key_id}/rotate", keys.rotate,
                   "A new secret; the old one stays valid for the overlap.", "admin",
                   body=Rotation, answer="The new secret and the key's row.", status=201,
                   changes_policy=True),
    ]  # fmt: skip
