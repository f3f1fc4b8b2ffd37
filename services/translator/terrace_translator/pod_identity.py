"""Whether this pod has an identity at AWS: ``python -m terrace_translator.pod_identity``.

EKS puts the identity's address into a pod when the pod is created, and some seconds after an
association was made. A pod that was created earlier never has it, whatever restarts in it. Exits
with 0 it has one, 2 it has none.
"""

import os
import sys
from collections.abc import Mapping

from terrace_translator.config import ConfigError

ADDRESS = "AWS_CONTAINER_CREDENTIALS_FULL_URI"


def require(environ: Mapping[str, str]) -> None:
    """Raises ConfigError when the pod was created without an identity."""
    if not environ.get(ADDRESS):
        raise ConfigError(
            f"this pod was created without an identity at AWS ({ADDRESS} is unset), so every call"
            " to Bedrock would fail; check that an EKS Pod Identity association exists for its"
            " service account, then make the pod anew: kubectl rollout restart deployment/gateway"
        )


def main() -> int:
    try:
        require(os.environ)
    except ConfigError as refused:
        sys.stderr.write(f"terrace-translator: {refused}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
