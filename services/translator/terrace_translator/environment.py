"""What the process's environment must say before LiteLLM is imported."""

import os
import sys
from collections.abc import Collection, Mapping, MutableMapping
from types import ModuleType

# Read by LiteLLM at import or start. Each turns off something that reaches out or remembers.
FIXED: Mapping[str, str] = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else three fetches from a public site, with back-off
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_MODE": "PRODUCTION",  # in any other mode it reads .env files
    "LITELLM_LOG": "ERROR",
    "NO_DOCS": "True",
    "NO_REDOC": "True",
    "NO_OPENAPI": "True",
    "DISABLE_ADMIN_UI": "True",
    "HF_HUB_OFFLINE": "1",
    "STORE_MODEL_IN_DB": "False",
    "DEFAULT_MAX_RETRIES": "0",  # embeddings take a configured 0 for "not said" and retry twice
}
# Would give LiteLLM a database, a cache, another config, or somewhere to send data.
_FORBIDDEN_PREFIXES = (
    "DATABASE_", "DIRECT_URL", "REDIS_", "LITELLM_", "OTEL_", "LANGFUSE_", "SENTRY_", "DD_",
    "DATADOG_", "SLACK_", "OPENAI_", "WORKER_CONFIG", "CONFIG_FILE_PATH", "DEFAULT_MAX_RETRIES",
)  # fmt: skip


def prepare(
    environ: MutableMapping[str, str],
    *,
    config_file: str,
    master_key: str,
    keep: Collection[str] = (),
) -> None:
    """Removes what would change LiteLLM's behaviour from outside, except `keep`; sets its needs."""
    for name in list(environ):
        if name.startswith(_FORBIDDEN_PREFIXES) and name not in keep:
            del environ[name]
    environ.update(FIXED)
    environ["CONFIG_FILE_PATH"] = config_file
    environ["LITELLM_MASTER_KEY"] = master_key
    # LiteLLM unpacks and caches below the home directory, which the image does not have.
    environ.setdefault("HOME", "/tmp")  # noqa: S108 - the pod's own memory volume
    environ.setdefault("XDG_CACHE_HOME", "/tmp")  # noqa: S108


def stand_in_for_soundfile() -> None:
    """An empty ``soundfile``: a logger for audio imports it at its top and uses it for audio only.

    The real one brings NumPy and OpenBLAS (63 MB). Audio is no surface of the guard.
    """
    sys.modules.setdefault("soundfile", ModuleType("soundfile"))


def prepare_process(*, config_file: str, master_key: str, keep: Collection[str] = ()) -> None:
    """`prepare` for this process. Call it before the first import of LiteLLM."""
    prepare(os.environ, config_file=config_file, master_key=master_key, keep=keep)
    stand_in_for_soundfile()
