"""Settings of the simulator: environment variables ``TERRACE_SIMULATOR_*``."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SimulatorSettings(BaseSettings):
    """Durations in seconds, sizes in bytes unless said otherwise."""

    model_config = SettingsConfigDict(env_prefix="TERRACE_SIMULATOR_", frozen=True)

    host: str = "0.0.0.0"  # noqa: S104  a pod's own address
    port: int = Field(default=8080, ge=0, le=65535)
    bill_path: Path = Path("/var/lib/terrace-simulator/bill.jsonl")
    prices_file: Path | None = None
    """None: the packaged table."""
    credentials_dir: Path = Path("/run/secrets/terrace")

    time_to_first_token_seconds: float = Field(default=0.0, ge=0)
    tokens_per_second: float = Field(default=0.0, ge=0)
    """Pace of one answer; 0 means as fast as it can."""
    tokens_per_chunk: int = Field(default=4, gt=0)
    """Tokens in one event of a stream."""
    checkpoint_chunks: int = Field(default=8, gt=0)
    """A running call's output is noted in the book after so many chunks."""

    max_body_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    bill_reserve_bytes: int = Field(default=256 * 1024, ge=0)
    """Disk space held back so that calls already open can be closed when the disk is full."""
    shutdown_grace_seconds: int = Field(default=20, ge=0)
