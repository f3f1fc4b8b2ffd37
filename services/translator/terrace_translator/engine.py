"""Runs LiteLLM's app on the Unix socket: start, warm-up, ready, and an end that is never quiet."""

import asyncio
import contextlib
import importlib
import os
import secrets
import signal
from collections.abc import Collection, Coroutine, Generator, Sequence
from types import FrameType
from typing import Any

import yaml
from uvicorn import Config, Server

from terrace_translator import config as translator_config
from terrace_translator import (
    no_redirects,
    one_caller,
    pod_identity,
    rehearsal_provider,
    upstream_status,
)
from terrace_translator.environment import prepare_process
from terrace_translator.private_files import make_private_directory, write_private
from terrace_translator.settings import Settings
from terrace_translator.warm_up import rehearsal_entries, rehearse

_POLL_SECONDS = 0.05


class EngineError(Exception):
    """LiteLLM did not start, or ended by itself."""


async def run(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; returns then. Raises ConfigError, EngineError, WarmUpError;
    RedirectsError or UpstreamStatusError if a client library is not built as it was.

    Of what an earlier process left in the directory nothing is believed: `ready` goes first, and
    the master key is a new one.
    """
    if settings.pod_identity:
        pod_identity.require(os.environ)
    config = translator_config.load(settings.translator_config)
    variables = translator_config.referenced_variables(config)
    if missing := sorted(name for name in variables if not os.environ.get(name)):
        raise translator_config.ConfigError(
            f"{settings.translator_config} takes credentials from {', '.join(missing)} (unset)"
        )
    make_private_directory(settings.engine_directory)
    settings.ready.unlink(missing_ok=True)
    settings.socket.unlink(missing_ok=True)
    master_key = f"sk-{secrets.token_hex(32)}"
    write_private(settings.master_key, f"{master_key}\n")
    kinds = translator_config.providers(config)
    try:
        async with rehearsal_provider.serving() as address:
            rehearsals = [e for kind in kinds for e in rehearsal_entries(kind, address)]
            effective = {**config, "model_list": [*config["model_list"], *rehearsals]}
            write_private(settings.effective_config, yaml.safe_dump(effective))
            server = _server(settings, master_key, keep=variables)
            serving = asyncio.create_task(server.serve())
            try:
                await _started(server, serving)
                await no_redirects.prove(address)
                await _unless_ended(rehearse(settings.socket, master_key, kinds), serving)
                _forget([entry["model_info"]["id"] for entry in rehearsals])
            except BaseException:
                server.should_exit = server.force_exit = True
                await asyncio.wait([serving])
                raise
        if not server.should_exit:
            write_private(settings.ready, "ready\n")
        await serving
        if not server.told_to_end:
            raise EngineError("LiteLLM ended by itself")
    finally:
        for leftover in (settings.ready, settings.socket, settings.master_key):
            leftover.unlink(missing_ok=True)


class _Server(Server):
    told_to_end = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.told_to_end = True
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """uvicorn raises a caught SIGTERM again at its end, before our own end could run."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def _server(settings: Settings, master_key: str, *, keep: Collection[str]) -> _Server:
    prepare_process(config_file=str(settings.effective_config), master_key=master_key, keep=keep)
    no_redirects.forbid()
    upstream_status.watch()
    # Here and not at the top: it takes seconds, and reads the environment while it is imported.
    app = importlib.import_module("litellm.proxy.proxy_server").app
    one_caller.admit(app, master_key)
    return _Server(
        Config(
            upstream_status.telling(app),
            uds=str(settings.socket),
            workers=1,
            access_log=False,
            log_level="warning",
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_grace_seconds,
        )
    )


async def _started(server: Server, serving: "asyncio.Task[None]") -> None:
    while not server.started:
        await asyncio.wait([serving], timeout=_POLL_SECONDS)
        if serving.done():
            # The reason is in LiteLLM's own log, above: a refused start is an exit of its lifespan.
            with contextlib.suppress(SystemExit):
                serving.result()
            raise EngineError("LiteLLM ended before it was started")


async def _unless_ended(work: Coroutine[Any, Any, None], serving: "asyncio.Task[None]") -> None:
    task = asyncio.ensure_future(work)
    await asyncio.wait([task, serving], return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        task.cancel()
        raise EngineError("LiteLLM ended during the warm-up")
    await task


def _forget(deployments: Sequence[str]) -> None:
    router = importlib.import_module("litellm.proxy.proxy_server").llm_router
    for deployment in deployments:
        if router.delete_deployment(id=deployment) is None:
            raise EngineError(f"the warm-up deployment {deployment} could not be removed")
