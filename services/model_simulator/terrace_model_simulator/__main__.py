"""``python -m terrace_model_simulator``: serve until SIGTERM, then finish running calls."""

import sys

import uvicorn
from pydantic import ValidationError

from terrace_model_simulator.app import create_app
from terrace_model_simulator.append_log import LogCorruptError, LogLockedError
from terrace_model_simulator.connection import OpenConnections
from terrace_model_simulator.credentials import CredentialsError
from terrace_model_simulator.logs import configure_logs
from terrace_model_simulator.prices import PriceTableError
from terrace_model_simulator.settings import SimulatorSettings

EXIT_WRONG_CONFIG = 2


def main() -> int:
    """Exit code 0 after a shutdown, 2 when settings, credentials, prices or book are unusable."""
    try:
        settings = SimulatorSettings()
        connections = OpenConnections()
        app = create_app(settings, connections)
    except (
        ValidationError,
        CredentialsError,
        PriceTableError,
        LogCorruptError,
        LogLockedError,
        OSError,
    ) as error:
        sys.stderr.write(f"model simulator: {error}\n")
        return EXIT_WRONG_CONFIG
    configure_logs()
    uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=connections.protocol_class(),
            ws="none",
            lifespan="on",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_grace_seconds,
        )
    ).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
