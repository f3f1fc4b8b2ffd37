"""A guard as a process, for tests whose client libraries block."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway_rig.guard import ADMIN_KEY
from gateway_rig.postgres import free_port

START_SECONDS = 120


@dataclass
class SyncGuard:
    """Where it listens."""

    public_url: str
    admin_url: str
    log: Path
    process: subprocess.Popen[bytes]

    @classmethod
    @contextmanager
    def running(cls, log: Path, **settings: object) -> Iterator["SyncGuard"]:
        """Ready, and ended by SIGTERM."""
        ports = {name: free_port() for name in ("public_port", "admin_port", "metrics_port")}
        values = {"host": "127.0.0.1", "drain_delay_seconds": 0, "drain_seconds": 5,
                  "replica": "sync-guard", **ports, **settings}  # fmt: skip
        environment = {f"TERRACE_{name.upper()}": str(value) for name, value in values.items()}
        with log.open("ab") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "terrace_gateway"], stdout=out, stderr=out,
                env={"PATH": os.environ["PATH"], **environment},
            )  # fmt: skip
        urls = [f"http://127.0.0.1:{ports[name]}" for name in ("public_port", "admin_port")]
        guard = cls(*urls, log, process)
        try:
            guard._until_ready()
            yield guard
        finally:
            process.terminate()
            process.wait(60)

    def admin(self, method: str, path: str, **kwargs: Any) -> Any:
        """The answer of the admin API."""
        headers = {"authorization": f"Bearer {ADMIN_KEY}"}
        url = f"{self.admin_url}/admin/v1{path}"
        response = httpx.request(method, url, headers=headers, timeout=30, **kwargs)
        assert response.status_code < 300, response.text
        return response.json()

    def _until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"{self.public_url}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"not started: {self.log.read_text()[-4000:]}")
            time.sleep(0.05)
