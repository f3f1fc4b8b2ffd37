"""The whole guard as a process, before the relay and before LiteLLM, with a real Postgres."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "service" / "gateway" / "rig"))

from gateway_rig.guard import GuardProcess, guard_settings
from gateway_rig.postgres import Postgres

from .subjects import Subject

GOVERNANCE = """
version: 1
price_version: "bench"
providers:
  - {{name: relayed, kind: openai, api_base: "{api_base}", api_key_env: BENCH_KEY, relay: true}}
  - {{name: translated, kind: openai, api_base: "{api_base}", api_key_env: BENCH_KEY}}
models:
  - {{name: relay, provider: relayed, upstream_model: bench, {rest}}}
  - {{name: bench, provider: translated, upstream_model: bench, {rest}}}
"""
REST = (
    "context_tokens: 100000, max_output_tokens: 4096,"
    " price: {input_micro_usd_per_mtok: 1000, output_micro_usd_per_mtok: 2000}"
)


@asynccontextmanager
async def guards(folder: Path, api_base: str, translator: int) -> AsyncIterator[list[Subject]]:
    """Two subjects of one guard: its relay, and itself with LiteLLM behind it."""
    folder.chmod(0o755)  # Postgres runs as another user
    (folder / "postgres").mkdir()
    server = Postgres(folder / "postgres")
    server.create()
    guard = None
    try:
        with server.superuser() as connection:
            connection.execute("CREATE DATABASE bench OWNER gateway")
        upstream: Any = SimpleNamespace(
            socket=folder / "engine/engine.sock", key_file=folder / "engine/master-key"
        )
        credentials = folder / "provider-credentials"
        credentials.mkdir()
        (credentials / "BENCH_KEY").write_text("k")
        settings = guard_settings(
            folder, upstream, database_url=server.url("bench"),
            governance=GOVERNANCE.format(api_base=api_base, rest=REST),
        )  # fmt: skip
        settings |= {
            "relay_credentials_directory": credentials, "spool_directory": folder / "spool",
            "replica": "bench",
        }  # fmt: skip
        guard = await GuardProcess.start(settings, folder / "guard.log")
        headers = {"authorization": f"Bearer {await guard.key()}"}
        relayed = Subject(
            "guard-relay", guard.public_url, (guard.process.pid,), model="relay", headers=headers
        )
        translated = replace(
            relayed, name="guard-litellm", model="bench", slow=True,
            pids=(guard.process.pid, translator),
        )  # fmt: skip
        try:
            yield [relayed, translated]
        except Exception:
            print((folder / "guard.log").read_text()[-3000:])
            raise
    finally:
        if guard is not None:
            await guard.stop()
        server.stop()
