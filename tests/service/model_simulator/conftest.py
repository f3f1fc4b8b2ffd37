"""The simulator as a process of its own, as people's clients see it."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.config
import httpx
import openai
import pytest

API_KEY = "sk-sim-0123456789abcdef"
AWS_KEY_ID = "AKIASIMULATOR0000"
AWS_SECRET = "aws-secret-0123456789abcdef"
CLAUDE = "anthropic.claude-sonnet-4-5-20250929-v1:0"

_RUNNING = re.compile(r"Uvicorn running on (http://[0-9.]+:\d+)")


class Simulator:
    """One process on a free port of the loopback; its bill outlives it."""

    def __init__(self, directory: Path, prefix: tuple[str, ...] = (), **settings: object) -> None:
        credentials = directory / "credentials"
        credentials.mkdir(exist_ok=True)
        for name, value in (
            ("simulator-api-key", API_KEY),
            ("aws-access-key-id", AWS_KEY_ID),
            ("aws-secret-access-key", AWS_SECRET),
        ):
            (credentials / name).write_text(value + "\n")
        self.bill_path = directory / "volume" / "bill.jsonl"
        options = {
            "bill_path": self.bill_path,
            "credentials_dir": credentials,
            "host": "127.0.0.1",
            "port": 0,
            **settings,
        }
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("TERRACE_", "OTEL_"))},
            **{f"TERRACE_SIMULATOR_{name.upper()}": str(v) for name, v in options.items()},
        }
        self._prefix = prefix
        self.log_lines: list[str] = []
        self.start()

    def start(self) -> None:
        """Start the process; returns when it listens."""
        self.process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "terrace_model_simulator"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log_lines.append(line)
            found = _RUNNING.search(line)
            if found:
                self.url = found[1]
                break
        else:
            self.process.wait()
            pytest.fail(f"the simulator did not start: {''.join(self.log_lines)}")
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.http = httpx.Client(
            base_url=self.url, headers={"authorization": f"Bearer {API_KEY}"}, timeout=30
        )

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        self.log_lines.extend(self.process.stdout)

    def end(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop this process and wait for it."""
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        code = self.process.wait(timeout=60)
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def chat(self, text: str, **options: Any) -> httpx.Response:
        """A chat completion by plain HTTP. ``attempt`` becomes the header."""
        attempt = options.pop("attempt", None)
        headers = {} if attempt is None else {"x-terrace-attempt-id": attempt}
        body = {"model": "sim-small", "messages": [{"role": "user", "content": text}], **options}
        return self.http.post("/v1/chat/completions", json=body, headers=headers)

    def bill(self, attempt: str | None = None) -> dict[str, Any]:
        """The bill, of one attempt or of all."""
        params: dict[str, str | int] = {"limit": 10_000}
        if attempt is not None:
            params["attempt_id"] = attempt
        answer = self.http.get("/bill", params=params)
        answer.raise_for_status()
        return answer.json()

    def faults(self, *faults: dict[str, Any]) -> None:
        """Set exactly these switches."""
        self.http.put("/control/faults", json=list(faults)).raise_for_status()


def openai_client(url: str, api_key: str = API_KEY) -> openai.OpenAI:
    """The public client, without retries; close it."""
    return openai.OpenAI(api_key=api_key, base_url=f"{url}/v1", max_retries=0)


def bedrock_client(url: str, key_id: str = AWS_KEY_ID, secret: str = AWS_SECRET) -> Any:
    """The public client, without retries; close it."""
    return boto3.client(
        "bedrock-runtime",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=botocore.config.Config(retries={"total_max_attempts": 1}, max_pool_connections=64),
    )


@pytest.fixture(scope="session")
def shared_simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulator]:
    """One process for all tests that only add to its bill."""
    simulator = Simulator(tmp_path_factory.mktemp("simulator"))
    yield simulator
    simulator.end()


@pytest.fixture
def simulator(shared_simulator: Simulator) -> Iterator[Simulator]:
    """The shared process with no switches set. Name your attempts uniquely."""
    shared_simulator.faults()
    yield shared_simulator
    shared_simulator.faults()


@pytest.fixture
def start_simulator(tmp_path: Path) -> Iterator[Callable[..., Simulator]]:
    """Start processes of your own, with settings; each is ended after the test."""
    started: list[Simulator] = []

    def start(prefix: tuple[str, ...] = (), **settings: object) -> Simulator:
        started.append(Simulator(tmp_path, prefix, **settings))
        return started[-1]

    yield start
    for simulator in started:
        simulator.end(signal.SIGKILL)


@pytest.fixture
def openai_sdk(simulator: Simulator) -> Iterator[openai.OpenAI]:
    with openai_client(simulator.url) as client:
        yield client


@pytest.fixture
def bedrock_sdk(simulator: Simulator) -> Iterator[Any]:
    client = bedrock_client(simulator.url)
    yield client
    client.close()


@pytest.fixture
def make_openai() -> Callable[..., openai.OpenAI]:
    return openai_client


@pytest.fixture
def make_bedrock() -> Callable[..., Any]:
    return bedrock_client


@pytest.fixture
def attempt(request: pytest.FixtureRequest) -> str:
    """An attempt id of this test's own."""
    return re.sub(r"[^a-zA-Z0-9:_.-]", "-", request.node.name) + "-" + os.urandom(4).hex()
