"""The processes that are compared, before one provider."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
TRANSLATOR_PYTHON = str(ROOT / ".venv-translator/bin/python")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Subject:
    """One way to the provider. ``pids``: whose CPU counts."""

    name: str
    url: str
    pids: tuple[int, ...]
    model: str = "bench"
    socket: Path | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])
    slow: bool = False

    def cpu_seconds(self) -> float:
        """User and system time of the processes and their threads so far."""
        return sum(_cpu_seconds(pid) for pid in self.pids)


def peer(text: str) -> Subject:
    """``NAME=URL@PID[@header:value]...``: a gateway that somebody started."""
    name, _, rest = text.partition("=")
    url, pid, *headers = rest.split("@")
    return Subject(
        name, url, (int(pid),), model=os.environ.get("PEER_MODEL", "bench"),
        headers=dict(h.split(":", 1) for h in headers), slow=True,
    )  # fmt: skip


@asynccontextmanager
async def all_subjects(
    folder: Path, *, guard: bool, peers: list[Subject]
) -> AsyncIterator[list[Subject]]:
    """Everything up; it ends with the block. ``PROVIDER_PORT`` fixes the provider's port."""
    started: list[subprocess.Popen[bytes]] = []
    provider_port = int(os.environ.get("PROVIDER_PORT", "0")) or free_port()
    api_base = f"http://127.0.0.1:{provider_port}/v1"

    def run(name: str, *command: str, **environment: str) -> int:
        log = (folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env={**os.environ, **environment}
        )
        log.close()
        started.append(process)
        return process.pid

    try:
        run("provider", sys.executable, str(HERE / "provider.py"), str(provider_port))
        ports = free_port(), free_port()
        raw = run(
            "raw", sys.executable, str(HERE / "raw_relay.py"), str(ports[0]),
            f"{api_base}/chat/completions",
        )  # fmt: skip
        ours = run("relay", sys.executable, str(HERE / "our_relay.py"), str(ports[1]), api_base)
        translator = _translator(folder, api_base, run)
        bare_socket, bare_key = folder / "bare.sock", "sk-bench-bare"
        bare = run(
            "litellm", TRANSLATOR_PYTHON, str(HERE / "bare_litellm.py"),
            str(folder / "translator.yaml"), str(bare_socket), bare_key, BENCH_KEY="k",
        )  # fmt: skip
        for port in (provider_port, *ports):
            await _listening(port)
        await _until((folder / "engine/ready").exists, 300, folder / "translator.log")
        await _until(bare_socket.exists, 300, folder / "litellm.log")
        key = (folder / "engine/master-key").read_text().strip()
        subjects = [
            Subject("raw", f"http://127.0.0.1:{ports[0]}", (raw,)),
            Subject("relay", f"http://127.0.0.1:{ports[1]}", (ours,)),
            Subject(
                "litellm", "http://litellm", (bare,), socket=bare_socket,
                headers={"authorization": f"Bearer {bare_key}"}, slow=True,
            ),
            Subject(
                "translator", "http://translator", (translator,),
                socket=folder / "engine/engine.sock",
                headers={"authorization": f"Bearer {key}"}, slow=True,
            ),
        ]  # fmt: skip
        if not guard:
            yield [*subjects, *peers]
            return
        from .guard import guards

        async with guards(folder, api_base, translator) as made:
            yield [*subjects, *made, *peers]
    finally:
        for process in started:
            process.send_signal(signal.SIGTERM)
        for process in started:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _translator(folder: Path, api_base: str, run: Callable[..., int]) -> int:
    config = {
        "model_list": [
            {
                "model_name": "bench",
                "litellm_params": {
                    "model": "openai/bench", "api_base": api_base,
                    "api_key": "os.environ/BENCH_KEY", "max_retries": 0,
                },
            }
        ],
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
        "litellm_settings": {"num_retries": 0},
    }  # fmt: skip
    file = folder / "translator.yaml"
    file.write_text(yaml.safe_dump(config))
    return run(
        "translator", TRANSLATOR_PYTHON, "-m", "terrace_translator",
        TERRACE_TRANSLATOR_CONFIG=str(file), TERRACE_ENGINE_DIRECTORY=str(folder / "engine"),
        BENCH_KEY="k",
    )  # fmt: skip


def free_port() -> int:
    """A port that nobody has now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _listening(port: int) -> None:
    def there() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    await _until(there, 30, None)


async def _until(condition: Callable[[], bool], seconds: float, log: Path | None) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(log.read_text()[-2000:] if log else "it did not come up")
        await asyncio.sleep(0.1)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
