"""``python -m terrace_secret_bootstrap.fetch``: values of Secrets Manager as files of the pod.

For an init container whose pod needs a value that is rotated, or that should be in no Kubernetes
Secret. ``FETCH_SPEC`` is ``{"<file>": {"arn": "...", "json_key": "..."}}``, ``FETCH_DIRECTORY``
where the files go (a volume in memory). Exit codes: 0 done, 1 a value could not be had, 2 wrong
spec.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from terrace_secret_bootstrap.pod_identity import IdentityError, credentials_of_pod
from terrace_secret_bootstrap.secrets_manager import SecretsManager, SecretsManagerError
from terrace_secret_bootstrap.spec import External, SpecError, external_of

_FILE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?")
_READABLE_BY_GROUP = 0o440


def parse(text: str) -> dict[str, External]:
    """File name -> what it holds. Raises ``SpecError``."""
    try:
        document: object = json.loads(text)
    except ValueError as malformed:
        raise SpecError(f"FETCH_SPEC is not JSON: {malformed}") from None
    if not isinstance(document, dict) or not document:
        raise SpecError("FETCH_SPEC must be an object that names at least one file")
    wanted: dict[str, External] = {}
    for name, source in cast("dict[str, object]", document).items():
        if not _FILE.fullmatch(name):
            raise SpecError(f"FETCH_SPEC: {name!r} is no file name (lower-case, digits, '-', '.')")
        wanted[name] = external_of(source, f"FETCH_SPEC, file {name}")
    return wanted


def fetch(wanted: Mapping[str, External], directory: Path, source: SecretsManager) -> None:
    """Writes each value to its file, all of them or none."""
    values = {name: source.value(how.arn, how.json_key) for name, how in wanted.items()}
    for name, value in values.items():
        file = directory / name
        file.unlink(missing_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _READABLE_BY_GROUP)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(value)


def main() -> int:
    try:
        wanted = parse(os.environ.get("FETCH_SPEC", ""))
    except SpecError as wrong:
        _say(str(wrong))
        return 2
    directory = Path(os.environ.get("FETCH_DIRECTORY", "."))
    try:
        fetch(wanted, directory, SecretsManager(credentials_of_pod))
    except (IdentityError, SecretsManagerError, OSError) as failed:
        _say(str(failed))
        return 1
    _say(f"{directory}: {', '.join(sorted(wanted))} written")
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"secret-bootstrap: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
