"""The guard as a process: three servers in one event loop, and an orderly end."""

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Generator

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from terrace_gateway.admin.admin_app import create_admin_app
from terrace_gateway.edge.http_limits import bounded_protocol
from terrace_gateway.edge.public_app import create_public_app
from terrace_gateway.metrics import CONTENT_TYPE
from terrace_gateway.runtime import Runtime
from terrace_gateway.settings import Settings

log = structlog.get_logger()

WATCH_SECONDS = 0.5
# A thread that has work (the spool's files, an export) may keep the event loop waiting so long;
# Python's default is 5 ms.
SWITCH_SECONDS = 0.0002
# What a call makes ends with it: cycles are seldom worth looking for. Not measured apart.
YOUNG_OBJECTS = 20_000


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield


class ServerEndedError(RuntimeError):
    """A server could not start, or ended by itself; the message names its port."""


async def _listen(server: Server, port: int) -> None:
    """Serve until told to stop. A port that is taken ends uvicorn with ``SystemExit``, which would
    tear the loop down below everything else that runs in it."""
    try:
        await server.serve()
    except SystemExit:
        raise ServerEndedError(f"cannot listen on port {port}") from None


def create_metrics_app(runtime: Runtime) -> Starlette:
    """The app for port 9090: ``/metrics``."""

    async def metrics(_: Request) -> Response:
        return Response(
            runtime.metrics.exposition(), headers={"content-type": CONTENT_TYPE.decode()}
        )

    return Starlette(routes=[Route("/metrics", metrics)])


async def serve(runtime: Runtime) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    Order of the end: not ready, a pause for load balancers, no new connections, running calls to
    their end or the drain limit, settlements, goodbye. Raises the error of background work that
    must not end (a database that must not be used).
    """
    settings = runtime.settings
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await runtime.open()
    _suit_interpreter()
    apps = (
        (create_public_app(runtime), settings.public_port),
        (create_admin_app(runtime), settings.admin_port),
        (create_metrics_app(runtime), settings.metrics_port),
    )
    servers = [_server(app, port, settings) for app, port in apps]
    tasks = [
        asyncio.create_task(_listen(server, port))
        for server, (_, port) in zip(servers, apps, strict=True)
    ]
    log.info("started", public=settings.public_port, admin=settings.admin_port)
    try:
        failure = await _until_stop(runtime, stop, tasks)
        runtime.accepting = False
        log.info("draining", calls=len(runtime.in_flight))
        if failure is None:
            await asyncio.sleep(settings.drain_delay_seconds)
        deadline = loop.time() + settings.drain_seconds
        servers[0].should_exit = True
        await tasks[0]
        await runtime.close(running_seconds=max(0.0, deadline - loop.time()))
    finally:
        for server in servers:
            server.should_exit = True
        await asyncio.gather(*tasks, return_exceptions=True)
    if failure is not None:
        raise failure


def _suit_interpreter() -> None:
    """For a process of one busy loop. What stands now stays: the collector need not look at it
    again."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


async def _until_stop(
    runtime: Runtime, stop: asyncio.Event, tasks: list[asyncio.Task[None]]
) -> BaseException | None:
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), WATCH_SECONDS)
        failure = runtime.failed()
        if failure is not None:
            return failure
        for task in tasks:
            if task.done():
                return task.exception() or ServerEndedError("a server ended")
    return None


def _server(app: ASGIApp, port: int, settings: Settings) -> Server:
    return Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=port,
            http=bounded_protocol(
                max_connections=settings.max_connections,
                head_seconds=settings.head_read_seconds,
                stalled_seconds=settings.stalled_reader_seconds,
            ),
            loop="none",
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # edge/address.py decides whose word about an address counts
            date_header=True,
            timeout_keep_alive=settings.keep_alive_seconds,
            timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        )
    )
