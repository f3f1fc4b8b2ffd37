"""The real LiteLLM (through terrace_translator) before the real simulator, as processes."""

import os
import re
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import yaml

from gateway_rig.postgres import free_port
from terrace_common.governance import Governance, load_governance
from terrace_common.translator_config import translator_config

ROOT = Path(__file__).resolve().parents[5]
CREDENTIALS = {
    "simulator-api-key": "sk-canary-simulator-0123456789",
    "aws-access-key-id": "AKIACANARY0123456789",
    "aws-secret-access-key": "canary-aws-secret-0123456789",
}


EMBEDDING_MODEL = """
  - name: sim-embed
    provider: simulator-openai
    upstream_model: sim-embed
    kind: embeddings
    context_tokens: 8192
    max_output_tokens: 1
    price: {input_micro_usd_per_mtok: 20000, output_micro_usd_per_mtok: 0}
"""


class RealUpstream:
    """Started once per session: LiteLLM takes some fifteen seconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = folder / "engine"
        self.socket = self.engine / "engine.sock"
        self.key_file = self.engine / "master-key"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        example = files("terrace_common") / "examples" / "governance.local.yaml"
        self.governance_text = re.sub(
            r"http://model-simulator\.terrace-providers:8080", self.url, example.read_text("utf-8")
        ).replace("hard_stream_limit_seconds: 600", "hard_stream_limit_seconds: 20")
        if "sim-embed" not in self.governance_text:
            self.governance_text += EMBEDDING_MODEL
        self.governance: Governance = load_governance(self.governance_text, "governance.yaml")
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        credentials = self.folder / "credentials"
        credentials.mkdir()
        for name, value in CREDENTIALS.items():
            (credentials / name).write_text(value)
        self._run(
            sys.executable, "terrace_model_simulator",
            TERRACE_SIMULATOR_BILL_PATH=self.folder / "bill.jsonl",
            TERRACE_SIMULATOR_CREDENTIALS_DIR=credentials,
            TERRACE_SIMULATOR_HOST="127.0.0.1",
            TERRACE_SIMULATOR_PORT=self.port,
            TERRACE_SIMULATOR_TOKENS_PER_SECOND=0,
        )  # fmt: skip
        config = self.folder / "translator.yaml"
        config.write_text(yaml.safe_dump(translator_config(self.governance)))
        self._wait(lambda: self._answers("/healthz"))
        self._run(
            ROOT / ".venv-translator" / "bin" / "python", "terrace_translator",
            TERRACE_TRANSLATOR_CONFIG=config,
            TERRACE_ENGINE_DIRECTORY=self.engine,
            TERRACE_SIMULATOR_API_KEY=CREDENTIALS["simulator-api-key"],
            AWS_ACCESS_KEY_ID=CREDENTIALS["aws-access-key-id"],
            AWS_SECRET_ACCESS_KEY=CREDENTIALS["aws-secret-access-key"],
        )  # fmt: skip
        self._wait((self.engine / "ready").exists)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def fault(self, **fields: Any) -> None:
        """Set one switch of the simulator, for its next call."""
        body = [{"model": "*", "remaining": 1, **fields}]
        assert httpx.put(f"{self.url}/control/faults", json=body, timeout=60).status_code < 300

    def no_faults(self) -> None:
        assert httpx.delete(f"{self.url}/control/faults", timeout=60).status_code < 300

    def bill(self, attempt_id: str | None = None) -> dict[str, Any]:
        params = {} if attempt_id is None else {"attempt_id": attempt_id}
        return httpx.get(f"{self.url}/bill", params=params, timeout=60).json()

    def logs(self) -> str:
        return "".join(path.read_text("utf-8") for path in self.folder.glob("*.log"))

    def _run(self, python: Path | str, module: str, **environment: object) -> None:
        values = {name: str(value) for name, value in environment.items()}
        with (self.folder / f"{module}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [python, "-m", module],
                    stdout=log,
                    stderr=log,
                    env={"PATH": os.environ["PATH"], "HOME": str(self.folder), **values},
                )
            )

    def _answers(self, path: str) -> bool:
        try:
            return httpx.get(self.url + path).status_code == 200
        except httpx.TransportError:
            return False

    def _wait(self, condition: Any) -> None:
        deadline = time.monotonic() + 180
        while not condition():
            if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                raise RuntimeError(f"not started: {self.logs()}")
            time.sleep(0.1)
