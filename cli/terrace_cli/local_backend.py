"""Pulumi's backend of this machine: it is made and removed with the cluster, so only the local
stack may lie in it.
"""

import gzip
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from terrace_cli.errors import CliError, UsageError
from terrace_cli.output import counted
from terrace_cli.places import STACK, state_directory

BACKEND_VARIABLE = "PULUMI_BACKEND_URL"
# The local stack keeps no secret in config or state, so its passphrase need not be one:
# docs/decisions/0003-local-state-is-per-machine.md.
LOCAL_PASSPHRASE = "terrace-local"  # noqa: S105
_FILES = "file://"
_ENDINGS = (".json", ".json.gz")


@dataclass(frozen=True, kw_only=True)
class OtherStack:
    """A stack in the machine's backend that is not the local one. `resources` None: unreadable."""

    name: str
    resources: int | None

    def __str__(self) -> str:
        if self.resources is None:
            return f"{self.name} (its state cannot be read)"
        return f"{self.name} ({counted(self.resources, 'resource')})"


def backend_folder() -> Path:
    """Where the local stack's state lies; `down` removes it with the cluster."""
    return state_directory() / "pulumi"


def backend_url() -> str:
    """The same as Pulumi is told it.

    Without side files of attributes (`metadata=skip`): they are written in place, and Pulumi reads
    no state beside one that was cut short by a kill ("failed to load checkpoint: EOF").
    """
    return f"{_FILES}{backend_folder()}?metadata=skip"


def refuse_machines_backend(clone: Path, stack: str) -> None:
    """Raise UsageError when Pulumi would put `stack` into this machine's backend.

    Runs no Pulumi, which would make the backend's folder where there is none.
    """
    url = _backend_url(clone, os.environ)
    folder = _folder(url, clone)
    if folder is None or not folder.is_relative_to(state_directory().resolve()):
        return
    way_out = "`pulumi login` to another backend"
    if os.environ.get(BACKEND_VARIABLE):
        way_out = f'open a new shell (without `eval "$(terrace env)"`) and {way_out} there'
    refusal = (
        f"{stack} cannot be kept in this machine's backend {url}, which `terrace down` deletes "
        f"with the local cluster: {way_out}, then use the same command again (docs/aws.md, "
        '"Where Pulumi keeps its state"). Nothing was changed.'
    )
    login = _login(os.environ)
    if os.environ.get(BACKEND_VARIABLE) and login not in (None, url):
        refusal += (
            f"\nThe login to {login} has no effect in this shell: {BACKEND_VARIABLE}, which "
            "`terrace env` sets, wins over it."
        )
    raise UsageError(refusal)


def refuse_to_delete_other_stacks(clone: Path) -> None:
    """Raise CliError when other stacks than the local one have resources in the machine's backend.

    Without their state nobody would know what to destroy, and it would go on being billed.
    """
    found = other_stacks(clone)
    if not found:
        return
    folder = backend_folder()
    name = min(stack.name for stack in found)
    raise CliError(
        f"Pulumi's backend {_FILES}{folder} also keeps {', '.join(map(str, found))}. What these "
        "stacks made still exists, and without their state nothing can destroy it, so nothing was "
        "deleted. For each of them, in a new shell with\n"
        f"  export {BACKEND_VARIABLE}='{backend_url()}'\n"
        f"  export PULUMI_CONFIG_PASSPHRASE={LOCAL_PASSPHRASE}\n"
        f"either destroy it (`terrace down --stack {name}`, or `pulumi destroy --stack {name}`), "
        f"or move it: `pulumi stack export --stack {name} --file {name}.json`, `pulumi stack rm "
        f"--force --preserve-config {name}`, then in another backend `pulumi stack init {name}` "
        f"and `pulumi stack import --stack {name} --file {name}.json`. "
        "`terrace down --keep-data` stops the cluster and leaves them where they are."
    )


def other_stacks(clone: Path) -> list[OtherStack]:
    """Stacks with resources in the machine's backend, but for this project's local one."""
    stacks = backend_folder() / ".pulumi" / "stacks"
    found = []
    for file in sorted(stacks.rglob("*")):
        ending = next((one for one in reversed(_ENDINGS) if file.name.endswith(one)), None)
        if ending is None or not file.is_file():
            continue
        stack, project = file.name.removesuffix(ending), file.parent.name
        if stack == STACK and project == _project(clone):
            continue
        resources = _resources(file)
        if resources != 0:
            found.append(OtherStack(name=stack, resources=resources))
    return found


def _resources(checkpoint: Path) -> int | None:
    """How many things outside Pulumi the stack manages, those under way too; None: unreadable."""
    try:
        content = checkpoint.read_bytes()
        if checkpoint.suffix == ".gz":
            content = gzip.decompress(content)
        latest = json.loads(content)["checkpoint"].get("latest") or {}
        under_way = latest.get("pending_operations") or []
        entries = [*(latest.get("resources") or []), *(one["resource"] for one in under_way)]
        return len({one["urn"] for one in entries if _is_outside(one)})
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_outside(resource: Mapping[str, Any]) -> bool:
    kept_elsewhere = resource.get("external") or resource["type"].startswith("pulumi:")
    return bool(resource.get("custom")) and not kept_elsewhere


def _backend_url(clone: Path, environment: Mapping[str, str]) -> str | None:
    """The backend that Pulumi takes: the variable, else the project's, else the login."""
    project = _project_document(clone).get("backend")
    of_project = project.get("url") if isinstance(project, dict) else None
    return environment.get(BACKEND_VARIABLE) or of_project or _login(environment)


def _login(environment: Mapping[str, str]) -> str | None:
    """What `pulumi login` has noted."""
    home = environment.get("PULUMI_HOME") or Path.home() / ".pulumi"
    folder = Path(environment.get("PULUMI_CREDENTIALS_PATH") or home)
    try:
        return json.loads((folder / "credentials.json").read_text()).get("current") or None
    except (OSError, ValueError, AttributeError):
        return None


def _folder(url: str | None, clone: Path) -> Path | None:
    """The folder of a backend of files; a relative one counts from where Pulumi runs."""
    if not url or not url.startswith(_FILES):
        return None
    path = Path(url.removeprefix(_FILES).partition("?")[0]).expanduser()
    return (clone / path).resolve()


def _project(clone: Path) -> str:
    return str(_project_document(clone).get("name"))


def _project_document(clone: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load((clone / "Pulumi.yaml").read_text())
    except (OSError, yaml.YAMLError):
        return {}
    return document if isinstance(document, dict) else {}
