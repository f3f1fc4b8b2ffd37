"""The public port: raw ASGI, one ``Exchange`` per request, and the health routes."""

import json
import os
import time
from typing import cast

import structlog
from opentelemetry.trace import SpanKind
from starlette.types import ASGIApp, Receive, Scope, Send

from terrace_common.telemetry import context_from_headers, semconv
from terrace_gateway.calls.pipeline import ModelCalls
from terrace_gateway.edge.address import client_address, trusted_networks
from terrace_gateway.edge.client import LEAVING, Client
from terrace_gateway.edge.exchange import Arrival, Exchange
from terrace_gateway.edge.routes import Match, error_shape, is_bedrock, match_route, meant_route
from terrace_gateway.policy.feed import NOT_IN_FORCE
from terrace_gateway.runtime import Runtime
from terrace_gateway.surfaces.surface import JSON_HEADERS

log = structlog.get_logger()


def create_public_app(runtime: Runtime) -> ASGIApp:
    """The app for port 8080. It owns nothing: the runtime is opened and closed by the process."""
    return PublicApp(runtime)


class PublicApp:
    """Raw ASGI, because it must see the client's leaving and hold an answer's last bytes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls = ModelCalls(runtime)
        self._log = log.bind()  # a lazy logger is made anew for every line
        self._trusted = trusted_networks(runtime.settings.trusted_proxies)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not served")
        started = time.perf_counter()
        request_id = f"req_{os.urandom(16).hex()}"
        leaving = scope.get("extensions", {}).get(LEAVING)
        client = Client(receive, send, request_id=request_id, leaving=leaving)
        method = cast("str", scope["method"])
        path = cast("str", scope["path"])
        match = match_route(method, path)
        if match is not None and match.route.endpoint in {"healthz", "readyz"}:
            await self._health(match, client)
            return
        arrival = self._arrival(scope, path, request_id)
        route = match.route.template if match else "none"
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        with self._runtime.telemetry.tracer.start_as_current_span(
            f"{method} {route}" if match else "HTTP",
            context=context_from_headers(dict(arrival.headers)),
            kind=SpanKind.SERVER,
            record_exception=False,
            set_status_on_exception=False,
            attributes={semconv.HTTP_ROUTE: route, semconv.TERRACE_REQUEST_ID: request_id},
        ) as span:
            exchange = Exchange(self._runtime, self._calls, client, arrival, span=span)
            code = await exchange.serve(match, "" if match else meant_route(method, path))
            span.set_attribute(semconv.HTTP_RESPONSE_STATUS_CODE, client.status or 499)
            self._log.info(
                "request",
                method=method if match else "other",
                route=route,
                status=client.status or 499,
                code=code,
                client_gone=client.gone,
                seconds=round(time.perf_counter() - started, 4),
            )

    def _arrival(self, scope: Scope, path: str, request_id: str) -> Arrival:
        pairs = [
            (name.decode("latin-1").lower(), value.decode("latin-1"))
            for name, value in cast("list[tuple[bytes, bytes]]", scope["headers"])
        ]
        peer = cast("tuple[str, int] | None", scope.get("client"))
        forwarded = [value for name, value in pairs if name == "x-forwarded-for"]
        headers = dict(pairs)
        return Arrival(
            request_id,
            headers,
            client_address("" if peer is None else peer[0], forwarded, self._trusted),
            error_shape(path, headers),
            is_bedrock(path),
            tuple(pairs),
        )

    async def _health(self, match: Match, client: Client) -> None:
        runtime = self._runtime
        if match.route.endpoint == "healthz":
            await client.respond(200, JSON_HEADERS, b'{"status":"alive"}')
            return
        # A database that went away later does not make us unready: pulling every replica would
        # turn clear 503 answers into refused connections.
        parts = {
            "accepting": runtime.accepting,
            "governance": runtime.policy.ready,
            "spool": runtime.journal.answers,
            "database_prepared": runtime.database.prepared,
            "member": runtime.membership.entered,
            "translator": runtime.translator_ready,
        }
        ready = all(parts.values())
        body = {
            "ready": ready,
            **parts,
            "database_up": runtime.database.up,
            "slices": runtime.slices.is_live(),
            "governance_problem": self._governance_problem(),
        }
        await client.respond(200 if ready else 503, JSON_HEADERS, json.dumps(body).encode())

    def _governance_problem(self) -> str | None:
        """Strangers see the line of the log that has the words, and nothing of the words."""
        policy = self._runtime.policy
        if policy.problem is not None:
            return NOT_IN_FORCE
        trouble = self._runtime.deployment.trouble(
            policy.current().snapshot if policy.ready else None
        )
        return None if trouble is None else trouble.line
