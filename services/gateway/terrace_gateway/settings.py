"""The guard's settings, from the environment with prefix ``TERRACE_``; secrets are files."""

import socket
from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

SECRETS = Path("/run/secrets/terrace")
ENGINE = Path("/run/terrace/engine")
MIN_PEPPER_HEX = 64  # 32 bytes
MIN_ADMIN_KEY = 24


class SettingsError(ValueError):
    """A setting or a secret file is missing or wrong; the message names it."""


class Settings(BaseSettings):
    """Paths, ports and limits. Times are in seconds, sizes in bytes."""

    model_config = SettingsConfigDict(env_prefix="TERRACE_", frozen=True)

    governance_file: Path = Path("/etc/terrace/governance.yaml")
    database_url_file: Path = SECRETS / "database-url"
    key_pepper_file: Path = SECRETS / "key-pepper"
    admin_key_file: Path = SECRETS / "admin-key"
    ledger_signing_key_file: Path | None = None
    """Ed25519 seed of 32 bytes in hex that signs heads of the ledger; unset: none are anchored."""
    capture_key_file: Path | None = None
    """Key-encryption keys of captured prompts, 32 bytes in hex; instead of a key of KMS. Without
    either nothing is captured."""
    capture_kms_key_arn: str | None = Field(
        default=None, pattern=r"^arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+$"
    )
    """AWS KMS key that encrypts the data keys of captured prompts; instead of a key file."""
    relay_credentials_directory: Path = Path("/run/secrets/terrace-providers")
    """Credentials of relayed providers: one file per variable's name, else the environment."""
    spool_directory: Path = Path("/var/lib/terrace/spool")
    """On a volume of this replica's own: what is durable before a byte goes upstream."""
    policy_snapshot_folder: Path | None = None
    """On the same volume: the last policy, signed, for a start without a database; unset: such a
    start answers 503 until the database is there."""
    spool_bytes: int | None = Field(default=None, ge=1024 * 1024)
    """The spool takes no more of its volume; unset: what there is."""
    spool_segment_bytes: int = Field(default=8 * 1024 * 1024, ge=16 * 1024)
    """Of one file of the spool."""
    ledger_old_public_keys: tuple[str, ...] = ()
    """Public keys (32 bytes in hex) of earlier signing keys, whose anchors stay valid."""
    anchor_location: str | None = None
    """Where heads of the ledger are anchored: a directory, or ``s3://bucket``."""
    anchor_seconds: float = Field(default=60, gt=0)
    anchor_retention_days: int | None = Field(default=None, ge=1)
    """Of Object Lock on each anchor; unset: the bucket's own default retention."""
    export_location: str | None = None
    """Where days of the ledger go as Parquet: a directory, or ``s3://bucket``."""
    bedrock_log_location: str | None = None
    """Bedrock's log of invocations: ``s3://bucket/[prefix/]AWSLogs/ACCOUNT/`` +
    ``BedrockModelInvocationLogs``, or ``logs://GROUP`` in CloudWatch Logs."""
    bedrock_log_grace_seconds: float = Field(default=3600, ge=0)
    """A line of it may come so long after its call."""
    translator_socket: Path = ENGINE / "engine.sock"
    translator_key_file: Path = ENGINE / "master-key"

    host: str = "0.0.0.0"  # noqa: S104  a pod listens on its own address
    public_port: int = Field(default=8080, ge=0, le=65535)
    admin_port: int = Field(default=8081, ge=0, le=65535)
    metrics_port: int = Field(default=9090, ge=0, le=65535)
    replica: str = Field(default_factory=socket.gethostname, min_length=1, max_length=128)

    trusted_proxies: tuple[str, ...] = ()
    """CIDRs of proxies whose ``X-Forwarded-For`` is believed, for policies on networks."""

    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024)
    max_json_depth: int = Field(default=64, ge=8, le=500)
    max_json_values: int = Field(default=200_000, ge=1000)
    """Values and keys of one body. Reading it holds all other calls up for about a microsecond
    each."""
    head_read_seconds: float = Field(default=20, gt=0)
    body_read_seconds: float = Field(default=30, gt=0)
    stalled_reader_seconds: float = Field(default=120, gt=0)
    """A client that takes no byte of its answer for so long has left; the call goes on."""
    keep_alive_seconds: int = Field(default=75, ge=1, le=86_400)
    """How long an idle connection is kept. Behind a load balancer it must be longer than that
    one's idle timeout, or the balancer sends a request into a connection that is just closed."""
    max_connections: int = Field(default=1000, ge=1)
    """Of each port; more are closed at once."""
    free_body_bytes: int = Field(default=64 * 1024, ge=0)
    """How much of a body is read before its key is looked up."""
    body_memory_bytes: int = Field(default=96 * 1024 * 1024, ge=1024)
    """For all larger bodies of the process, until their calls have ended."""

    database_pool_size: int = Field(default=10, ge=2)
    database_wait_seconds: float = Field(default=2, gt=0)
    """How long a request waits for the database before it is refused with 503."""
    heartbeat_seconds: float = Field(default=0.25, gt=0)
    lease_seconds: int = Field(default=90, ge=2)
    """The replica lease: how long this guard may hold slices that it did not renew."""
    policy_lease_seconds: float = Field(default=1, gt=0)
    """How old the policy may be before calls are refused or limited, as the policy says."""
    provider_places: int = Field(default=256, ge=1)
    """Calls at once to one provider that declares no ``max_concurrency``."""
    provider_queue: int = Field(default=64, ge=0)
    provider_wait_seconds: float = Field(default=2, gt=0)
    reaper_seconds: float = Field(default=5, gt=0)
    stream_margin_seconds: float = Field(default=30, gt=0)
    """What the reaper grants beyond the hard stream limit."""
    reconcile_grace_seconds: float = Field(default=10, ge=0)
    """An attempt this young may be missing in a provider's log without being free."""
    drain_delay_seconds: float = Field(default=3, ge=0)
    """Between "not ready" and closing the door, so that load balancers notice."""
    ship_seconds: float = Field(default=10, gt=0)
    """How long the end of the process may take to ship the spool, after the last call."""
    drain_seconds: float = Field(default=25, gt=0)
    """How long running calls may go on after SIGTERM."""


class Secrets:
    """The guard's secrets, read once. ``repr`` shows none of them."""

    def __init__(self, *, database_url: SecretStr, key_pepper: bytes, admin_key: SecretStr) -> None:
        self.database_url = database_url
        self.key_pepper = key_pepper
        self.admin_key = admin_key

    def __repr__(self) -> str:
        return "Secrets(...)"


def read_secrets(settings: Settings) -> Secrets:
    """Read the secret files. Raises ``SettingsError`` that names the file, never its content."""
    pepper_text = read_secret(settings.key_pepper_file, "key pepper")
    try:
        pepper = bytes.fromhex(pepper_text)
    except ValueError:
        raise SettingsError(f"{settings.key_pepper_file}: the key pepper must be hex") from None
    if len(pepper_text) < MIN_PEPPER_HEX:
        raise SettingsError(f"{settings.key_pepper_file}: the key pepper must have 32 bytes")
    admin_key = read_secret(settings.admin_key_file, "admin key")
    if len(admin_key) < MIN_ADMIN_KEY:
        raise SettingsError(f"{settings.admin_key_file}: the admin key is too short")
    return Secrets(
        database_url=SecretStr(read_secret(settings.database_url_file, "database URL")),
        key_pepper=pepper,
        admin_key=SecretStr(admin_key),
    )


def read_secret(path: Path, what: str) -> str:
    """The text of a secret file. Raises ``SettingsError`` that names the file."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: cannot read the {what}: {type(error).__name__}") from None
    if not text:
        raise SettingsError(f"{path}: the {what} is empty")
    return text
