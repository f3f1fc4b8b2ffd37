"""One request on its way: who calls, under which policy, for what; and in any case an answer."""

from collections.abc import Mapping, Sequence

import structlog
from opentelemetry.trace import Span

from terrace_common.telemetry import semconv, trace_id_of
from terrace_gateway.calls.admission import admit, admit_to_list
from terrace_gateway.calls.attempt import UnrecordedError
from terrace_gateway.calls.pipeline import ModelCalls
from terrace_gateway.calls.ports import (
    AuthorityUnavailableError,
    Decision,
    Presented,
    Principal,
)
from terrace_gateway.calls.serving import Call
from terrace_gateway.edge.client import Client, ClientGoneError, Headers
from terrace_gateway.edge.errors import (
    AUTHORITY_UNAVAILABLE,
    CONTENT_BLOCKED,
    INTERNAL_ERROR,
    KILLED,
    MODEL_NOT_FOUND,
    NOT_SERVABLE,
    ROUTE_NOT_FOUND,
    UNPRICED,
    ApiError,
    ErrorShape,
)
from terrace_gateway.edge.presented import check_host, presented_token
from terrace_gateway.edge.routes import Match
from terrace_gateway.frozen import frozen
from terrace_gateway.matching import Excluded, NoCandidateError
from terrace_gateway.matching.hints import parse_hints
from terrace_gateway.policy.snapshot import Snapshot
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.json_body import parse_json_object
from terrace_gateway.surfaces.model_list import model_body, models_body
from terrace_gateway.surfaces.request import SurfaceRequest, read_request
from terrace_gateway.surfaces.surface import JSON_HEADERS, Identity

log = structlog.get_logger()

HINTS_HEADER = "x-terrace-hints"
POLICY_HEADER = b"x-terrace-policy"
_OURS = "an error of ours; the request id finds it in the log"
_RECORDED = frozenset({CONTENT_BLOCKED, NOT_SERVABLE, UNPRICED, MODEL_NOT_FOUND})


@frozen
class Arrival:
    """What the edge knows of a request before anything is read."""

    request_id: str
    headers: Mapping[str, str]
    """Names in lower case."""
    address: str
    shape: ErrorShape
    bedrock: bool
    pairs: Sequence[tuple[str, str]]
    """All headers as they came: of one that came twice ``headers`` has the last."""


@frozen
class Admitted:
    """An authenticated caller, and the policy in force."""

    principal: Principal
    snapshot: Snapshot
    headers: Headers


class Exchange:
    """One request and its answer."""

    def __init__(
        self, runtime: Runtime, calls: ModelCalls, client: Client, arrival: Arrival, *, span: Span
    ) -> None:
        self._runtime = runtime
        self._calls = calls
        self._client = client
        self._arrival = arrival
        self._span = span
        self._principal: Principal | None = None
        self._request: SurfaceRequest | None = None

    async def serve(self, match: Match | None, meant: str = "") -> str | None:
        """Answer, in any case. Returns the error code, if it was one. ``meant`` is said where
        there is no route."""
        try:
            await self._route(match, meant)
        except ApiError as error:
            refusal = error.with_traceback(None)  # it would keep this frame, and the body's
        except AuthorityUnavailableError:
            refusal = self._unavailable()
        except UnrecordedError as error:
            refusal = _unrecorded(error)
        except ClientGoneError:
            return "client_gone"
        except Exception:
            log.exception("defect")
            refusal = ApiError(INTERNAL_ERROR, _OURS)
        else:
            return None
        await self._refuse(refusal)
        return refusal.code

    async def _route(self, match: Match | None, meant: str) -> None:
        if match is None:
            raise ApiError(ROUTE_NOT_FOUND, f"there is no such route here{meant}")
        admitted = await self._admit()
        if match.route.endpoint == "models":
            await self._models(admitted)
        elif match.route.endpoint == "model":
            await self._model(admitted, match.model_id or "")
        else:
            with self._runtime.body_room.hold() as grow:
                settings = self._runtime.settings
                body = await self._client.read_body(
                    limit=settings.max_body_bytes,
                    seconds=settings.body_read_seconds,
                    free=settings.free_body_bytes,
                    grow=grow,
                )
                if self._runtime.policy.current().snapshot is not admitted.snapshot:
                    admitted = await self._admit()  # the body took its time; policy did not wait
                await self._call(match, admitted, body)

    async def _admit(self) -> Admitted:
        arrival = self._arrival
        check_host(arrival.pairs)
        token = presented_token(arrival.pairs)
        await self._runtime.policy.confirm()
        presented = Presented(token, arrival.address, arrival.headers)
        principal = await self._runtime.authenticators.authenticate(presented)
        self._principal = principal
        caller = principal.caller
        structlog.contextvars.bind_contextvars(key_id=caller.key_id)
        self._span.set_attributes(
            {semconv.TERRACE_KEY_ID: caller.key_id, semconv.TERRACE_TEAM: caller.team}
        )
        in_force = self._runtime.policy.current()
        standing = in_force.standing(principal.policy)
        if standing.state == "ended":
            raise ApiError(AUTHORITY_UNAVAILABLE, "the policy in force cannot be confirmed now")
        extra: Headers = []
        if standing.state == "limited":
            left = max(0, int(standing.seconds_left))
            extra = [(POLICY_HEADER, f"limited; seconds={left}".encode())]
        killed = in_force.snapshot.killed(caller)
        if killed is not None:
            raise ApiError(KILLED, killed)
        self._client.extra = extra
        return Admitted(principal, in_force.snapshot, extra)

    async def _call(self, match: Match, admitted: Admitted, body: bytes) -> None:
        settings = self._runtime.settings
        source = parse_json_object(
            body, max_depth=settings.max_json_depth, max_values=settings.max_json_values
        )
        request = read_request(match, source)
        self._request = request
        asked = request.asked_model
        if asked != "auto" and admitted.snapshot.governance.find_model(asked) is None:
            asked = "unknown"  # what a client writes there may be anything, its prompt too
        self._span.set_attributes(
            {semconv.TERRACE_SURFACE: request.surface, semconv.REQUEST_MODEL: asked}
        )
        would_deny = admit(
            admitted.principal,
            request.needs,
            address=self._arrival.address,
            now=self._runtime.clock.database_now(),
        )
        for violation in would_deny:
            self._note("would_deny", violation.rule, request.asked_model)
        await self._calls.serve(
            Call(
                self._arrival.request_id,
                admitted.principal,
                admitted.snapshot,
                request,
                self._hints(),
                self._arrival.bedrock,
                self._arrival.address,
                admitted.headers,
            ),
            self._client,
            self._span,
        )

    def _hints(self) -> Mapping[str, str]:
        text = self._arrival.headers.get(HINTS_HEADER)
        if text is None:
            return {}
        try:
            return parse_hints(text)
        except NoCandidateError as error:
            raise ApiError(error.code, error.message, param=HINTS_HEADER) from None

    async def _models(self, admitted: Admitted) -> None:
        await self._client.respond(
            200, JSON_HEADERS, models_body(self._visible(admitted), self._arrival.shape)
        )

    async def _model(self, admitted: Admitted, name: str) -> None:
        found = admitted.snapshot.governance.find_model(name)
        if found is None or found.name not in self._visible(admitted):
            raise ApiError(MODEL_NOT_FOUND, "there is no such model for this key", param="model")
        await self._client.respond(200, JSON_HEADERS, model_body(found.name, self._arrival.shape))

    def _visible(self, admitted: Admitted) -> tuple[str, ...]:
        principal, snapshot = admitted.principal, admitted.snapshot
        now = self._runtime.clock.database_now()
        for violation in admit_to_list(principal, address=self._arrival.address, now=now):
            self._note("would_deny", violation.rule, None)
        return self._runtime.matcher.visible(
            principal.policy,
            surfaces=principal.surfaces,
            excluded=Excluded(
                models=snapshot.killed_models | snapshot.undeployed,
                providers=snapshot.killed_providers,
            ),
        )

    def _unavailable(self) -> ApiError:
        told = "keys and policies cannot be checked now"
        if self._request is None:  # else a candidate before, or a call whose answer is guarded
            told += "; nothing was sent"
        return ApiError(AUTHORITY_UNAVAILABLE, told)

    async def _refuse(self, error: ApiError) -> None:
        self._span.set_attribute(semconv.ERROR_TYPE, error.code)
        client, shape = self._client, self._arrival.shape
        if error.status in {403, 429} or error.code in _RECORDED:
            asked = None if self._request is None else self._request.asked_model
            self._note("deny", error.code, asked)
        if client.status is None:
            self._runtime.metrics.denied.labels(error.code).inc()
            await client.respond(error.status, error.headers(shape), error.body(shape))
        elif not client.finished and self._request is not None:
            identity = Identity(self._arrival.request_id, self._request.asked_model)
            await client.finish(self._request.answers(identity).broken(error))

    def _note(self, decision: str, reason: str, model: str | None) -> None:
        if self._principal is None:
            return  # nobody that we know: metrics count it
        known = self._runtime.policy.current().snapshot.governance.find_model(model or "")
        self._runtime.journal.note(
            Decision(
                decision,  # pyright: ignore[reportArgumentType]
                reason,
                {},
                self._arrival.request_id,
                trace_id_of(self._span),
                self._principal.caller,
                None if self._request is None else self._request.surface,
                None if known is None else known.name,
            )
        )


def _unrecorded(error: UnrecordedError) -> ApiError:
    if not error.sent:
        return ApiError(
            AUTHORITY_UNAVAILABLE, "this guard cannot record now; the last attempt was not sent"
        )
    return ApiError(
        INTERNAL_ERROR,
        "the call was sent and may have been billed, but its end cannot be recorded; "
        "the request id finds it in the log",
    )
