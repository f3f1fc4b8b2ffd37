"""``python -m terrace_translator``. Exits with 0 told to end, 1 LiteLLM failed, 2 config."""

import sys

import uvloop
from pydantic import ValidationError

from terrace_translator.config import ConfigError
from terrace_translator.engine import EngineError, run
from terrace_translator.no_redirects import RedirectsError
from terrace_translator.settings import Settings
from terrace_translator.upstream_status import UpstreamStatusError
from terrace_translator.warm_up import WarmUpError


def main() -> int:
    try:
        uvloop.run(run(Settings()))  # as LiteLLM's own command does
    except (ConfigError, ValidationError) as refused:
        _say(str(refused))
        return 2
    except (EngineError, WarmUpError, RedirectsError, UpstreamStatusError, OSError) as failed:
        _say(str(failed))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _say(message: str) -> None:
    sys.stderr.write(f"terrace-translator: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
