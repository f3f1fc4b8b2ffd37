"""``python -m terrace_gateway``: the guard. Exit 0 after a drain, 2 for wrong settings."""

import sys

import structlog
import uvloop
from pydantic import ValidationError

from terrace_common.governance import GovernanceError
from terrace_gateway.composition import build_runtime
from terrace_gateway.database import DatabaseConfigError
from terrace_gateway.logs import configure_logs
from terrace_gateway.process import ServerEndedError, serve
from terrace_gateway.settings import Settings, SettingsError

EXIT_WRONG_CONFIG = 2
EXIT_SERVER_ENDED = 1


def main() -> int:
    """Run the guard until it is told to stop."""
    try:
        settings = Settings()
    except ValidationError as error:
        problems = (
            f"TERRACE_{'.'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
            for item in error.errors(include_url=False, include_input=False)
        )
        sys.stderr.write("terrace-gateway: " + "; ".join(problems) + "\n")
        return EXIT_WRONG_CONFIG
    configure_logs(replica=settings.replica)
    log = structlog.get_logger()
    try:
        runtime = build_runtime(settings)
        uvloop.run(serve(runtime))
    except (SettingsError, GovernanceError, DatabaseConfigError) as error:
        log.error("refused_to_start", reason=str(error))  # noqa: TRY400  the message says it all
        return EXIT_WRONG_CONFIG
    except ServerEndedError as error:
        log.error("ended", reason=str(error))  # noqa: TRY400
        return EXIT_SERVER_ENDED
    return 0


if __name__ == "__main__":
    sys.exit(main())
