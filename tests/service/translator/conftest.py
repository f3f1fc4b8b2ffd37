"""The real LiteLLM as a subprocess of its own environment, between the test and a fake provider."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from . import fake_provider
from .fake_provider import FakeProvider

ROOT = Path(__file__).resolve().parents[3]
# Another LiteLLM is tried by naming the Python of its environment: newest.sh does.
PYTHON = Path(
    os.environ.get("TERRACE_TRANSLATOR_PYTHON", ROOT / ".venv-translator" / "bin" / "python")
)
BEDROCK_MODEL = "anthropic.claude-sonnet-4-5-20250929-v1:0"
PACKAGE = ROOT / "services" / "translator"
START_SECONDS = 180


@dataclass
class Translator:
    """A running translator: its process, its directory, and a client as the guard would be."""

    process: asyncio.subprocess.Process
    directory: Path
    client: httpx.AsyncClient
    provider: FakeProvider

    @property
    def master_key(self) -> str:
        return (self.directory / "master-key").read_text().strip()


def config(address: str) -> dict[str, Any]:
    """What terrace_common.translator_config makes, for one provider of each kind."""
    return {
        "model_list": [
            {
                "model_name": "sim-small",
                "litellm_params": {
                    "model": "openai/sim-small",
                    "api_base": f"{address}/v1",
                    "api_key": "os.environ/TERRACE_SIMULATOR_API_KEY",
                    "max_retries": 0,
                },
            },
            {
                "model_name": "bedrock-claude",
                "litellm_params": {
                    "model": f"bedrock/{BEDROCK_MODEL}",
                    "aws_bedrock_runtime_endpoint": address,
                    "aws_region_name": "us-east-1",
                    "aws_access_key_id": "os.environ/AWS_ACCESS_KEY_ID",
                    "aws_secret_access_key": "os.environ/AWS_SECRET_ACCESS_KEY",
                },
            },
        ],
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {"num_retries": 0, "request_timeout": 60},
        "general_settings": {},
    }


def environment(directory: Path, config_file: Path) -> dict[str, str]:
    """Only what the pod would have, and some that must be without effect."""
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(PACKAGE),
        "TERRACE_ENGINE_DIRECTORY": str(directory),
        "TERRACE_TRANSLATOR_CONFIG": str(config_file),
        "TERRACE_SIMULATOR_API_KEY": "simulator-canary",
        "AWS_ACCESS_KEY_ID": "AKIACANARY",
        "AWS_SECRET_ACCESS_KEY": "aws-canary",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "REDIS_HOST": "127.0.0.1",
        "DEFAULT_MAX_RETRIES": "3",
    }


@asynccontextmanager
async def running(
    folder: Path,
    provider: FakeProvider,
    *,
    configuration: dict[str, Any] | None = None,
    variables: dict[str, str] | None = None,
) -> AsyncIterator[Translator]:
    """A translator that has said ready; ended by SIGTERM. ``configuration`` and ``variables``
    stand in for ``config()`` and ``environment()``."""
    directory = folder / "engine"
    left_behind = _inode(directory / "ready")
    config_file = folder / "translator.yaml"
    config_file.write_text(json.dumps(configuration or config(provider.address)))
    with (folder / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PYTHON, "-m", "terrace_translator", cwd=folder, stdout=log, stderr=log,
            env=environment(directory, config_file) if variables is None else {
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(PACKAGE),
                "TERRACE_ENGINE_DIRECTORY": str(directory),
                "TERRACE_TRANSLATOR_CONFIG": str(config_file),
                **variables,
            },
        )  # fmt: skip
    try:
        async with asyncio.timeout(START_SECONDS):
            while _inode(directory / "ready") in (None, left_behind):
                if process.returncode is not None:
                    pytest.fail(
                        f"it ended with {process.returncode}: {(folder / 'log').read_text()}"
                    )
                await asyncio.sleep(0.1)
        transport = httpx.AsyncHTTPTransport(uds=str(directory / "engine.sock"))
        key = (directory / "master-key").read_text().strip()
        async with httpx.AsyncClient(
            transport=transport, base_url="http://engine", timeout=60,
            headers={"authorization": f"Bearer {key}"},
        ) as client:  # fmt: skip
            yield Translator(process, directory, client, provider)
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


def _inode(file: Path) -> tuple[int, int] | None:
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Translator]:
    folder = tmp_path_factory.mktemp("translator")
    async with fake_provider.serving() as provider, running(folder, provider) as translator:
        yield translator


@pytest.fixture
def translator(started: Translator) -> Translator:
    started.provider.faults.clear()
    started.provider.says.clear()
    started.provider.calls.clear()
    return started
