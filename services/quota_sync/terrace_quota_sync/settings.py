"""Settings of quota_sync: environment variables ``TERRACE_QUOTA_SYNC_*``. AWS's own variables
(``AWS_ENDPOINT_URL_BEDROCK``, ``AWS_CONTAINER_CREDENTIALS_FULL_URI``, ...) are botocore's."""

import socket
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

MAX_KEY_BYTES = 4096


class SettingsError(Exception):
    """A file that settings name cannot be used; ``str()`` names it and no content."""


class QuotaSyncSettings(BaseSettings):
    """Durations in seconds."""

    model_config = SettingsConfigDict(env_prefix="TERRACE_QUOTA_SYNC_", frozen=True)

    admin_url: str = Field(pattern=r"^https?://[^\s@]+$")
    """The gateway's admin API."""
    admin_key_file: Path = Path("/run/secrets/terrace/admin-key")
    replica: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)
    host: str = "0.0.0.0"  # noqa: S104  a pod's own address
    port: int = Field(default=9090, ge=0, le=65535)

    every_seconds: float = Field(default=3600, gt=0)
    """Between two readings of a region."""
    retry_seconds: float = Field(default=30, gt=0)
    """After a failed reading; doubled with each, at most ``every_seconds``."""
    catalogue_seconds: float = Field(default=30, gt=0)
    """Between two looks at the governance version in force."""
    region_seconds: float = Field(default=120, gt=0)
    """A reading of one region that takes longer has failed."""
    stale_after_seconds: int = Field(default=3 * 3600, ge=1, le=30 * 86_400)
    """Of the beginning of a reading: then the lower share holds."""
    stale_percent: int = Field(default=80, ge=0, le=100)
    """The lower share, of the share while it is fresh."""
    lease_seconds: float = Field(default=15, gt=0, le=600)
    simulated: bool = False
    """Whether to sync providers with an ``endpoint`` of their own as well (for tests)."""


def read_admin_key(path: Path) -> SecretStr:
    """The admin key. Raises ``SettingsError``."""
    try:
        with path.open("rb") as file:
            key = file.read(MAX_KEY_BYTES + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot read the admin key: {type(error).__name__}") from None
    if not key or len(key) > MAX_KEY_BYTES or any(c.isspace() for c in key):
        raise SettingsError(f"{path}: is not an admin key")
    return SecretStr(key)
