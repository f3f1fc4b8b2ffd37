"""``python -m terrace_quota_sync``: read and publish until SIGTERM."""

import asyncio
import sys

from pydantic import ValidationError

from terrace_quota_sync.logs import configure_logs
from terrace_quota_sync.service import serve
from terrace_quota_sync.settings import QuotaSyncSettings, SettingsError, read_admin_key

EXIT_FAILED = 1
EXIT_WRONG_CONFIG = 2


def main() -> int:
    """Exit code 0 after a shutdown, 1 when work ended by itself, 2 for unusable settings."""
    try:
        settings = QuotaSyncSettings()  # pyright: ignore[reportCallIssue]  from the environment
        key = read_admin_key(settings.admin_key_file)
    except ValidationError as error:
        names = ", ".join(
            f"TERRACE_QUOTA_SYNC_{'_'.join(map(str, one['loc'])).upper()}: {one['msg']}"
            for one in error.errors(include_input=False, include_url=False)
        )
        sys.stderr.write(f"quota_sync: {names}\n")
        return EXIT_WRONG_CONFIG
    except SettingsError as error:
        sys.stderr.write(f"quota_sync: {error}\n")
        return EXIT_WRONG_CONFIG
    configure_logs(replica=settings.replica)
    return 0 if asyncio.run(serve(settings, key)) else EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
