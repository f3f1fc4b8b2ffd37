"""Where the translator finds its config and keeps its socket."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Read from the environment, prefix ``TERRACE_``."""

    model_config = SettingsConfigDict(env_prefix="TERRACE_", extra="ignore")

    translator_config: Path = Path("/etc/terrace/translator.yaml")
    engine_directory: Path = Path("/run/terrace/engine")
    """Made with mode 0700; on a volume in memory, shared with the guard."""
    shutdown_grace_seconds: int = Field(default=30, ge=0)
    """How long running calls may go on after SIGTERM; 0 cuts them at once."""

    pod_identity: bool = False
    """Refuse to start in a pod that was created without an identity at AWS."""

    @property
    def socket(self) -> Path:
        return self.engine_directory / "engine.sock"

    @property
    def master_key(self) -> Path:
        return self.engine_directory / "master-key"

    @property
    def ready(self) -> Path:
        return self.engine_directory / "ready"

    @property
    def effective_config(self) -> Path:
        return self.engine_directory / "litellm.yaml"
