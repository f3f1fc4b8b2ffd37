"""The environment in which Pulumi runs, by this command or by hand (`terrace env`)."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from terrace_cli.local_backend import (
    BACKEND_VARIABLE,
    LOCAL_PASSPHRASE,
    backend_folder,
    backend_url,
)
from terrace_cli.places import state_directory

# Settings of the user's other Pulumi projects that would win over the ones above.
_NOT_OURS = frozenset({"PULUMI_CONFIG_PASSPHRASE_FILE", "PULUMI_STACK", "PULUMI_ACCESS_TOKEN"})


def pulumi_variables(bin_directory: Path) -> dict[str, str]:
    """The variables to set, on top of the caller's own environment.

    PATH begins with the toolchain, then the virtual environment's Python: the language host takes
    `python` from PATH.
    """
    state = state_directory()
    variables = {
        "PATH": os.pathsep.join(
            [
                str(bin_directory),
                str(Path(sys.executable).parent),
                os.environ.get("PATH", os.defpath),
            ]
        ),
        "KUBECONFIG": str(state / "kubeconfig"),
        BACKEND_VARIABLE: backend_url(),
        "PULUMI_HOME": str(backend_folder() / "home"),
        "PULUMI_CONFIG_PASSPHRASE": LOCAL_PASSPHRASE,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }
    if shutil.which("pulumi-resource-kubernetes", path=variables["PATH"]):
        variables["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"] = "true"
    return variables


def pulumi_environment(bin_directory: Path) -> dict[str, str]:
    """The whole environment for a Pulumi process."""
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_OURS}
    return {**inherited, **pulumi_variables(bin_directory)}


def shell_exports(variables: Mapping[str, str]) -> str:
    """`export NAME=value` lines for `eval "$(terrace env)"` in any POSIX shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())
