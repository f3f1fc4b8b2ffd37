"""``python -m terrace_secret_bootstrap``. Exit codes: 0 all Secrets exist, 1 not, 2 wrong spec."""

import os
import sys

from terrace_secret_bootstrap.bootstrap import KeyMissingError, bootstrap
from terrace_secret_bootstrap.kubernetes import ApiError, Kubernetes
from terrace_secret_bootstrap.pod_identity import IdentityError, credentials_of_pod
from terrace_secret_bootstrap.secrets_manager import SecretsManager, SecretsManagerError
from terrace_secret_bootstrap.spec import SpecError, parse


def main() -> int:
    try:
        specs = parse(os.environ.get("SECRETS_SPEC", ""))
    except SpecError as wrong:
        _say(str(wrong))
        return 2
    try:
        external = SecretsManager(credentials_of_pod)
        bootstrap(specs, Kubernetes.from_pod(), external=external, say=_say)
    except (ApiError, KeyMissingError, IdentityError, SecretsManagerError) as failed:
        _say(str(failed))
        return 1
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"secret-bootstrap: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
