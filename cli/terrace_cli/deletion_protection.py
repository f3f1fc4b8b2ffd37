"""What AWS or Pulumi would refuse to delete, read from a stack's state before anything is deleted.

A destroy that meets a protected resource has by then deleted what came before it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# AWS' own flags: deletionProtection of EKS and RDS, enableDeletionProtection of load balancers.
_FLAGS = ("deletionProtection", "enableDeletionProtection")
_SETTINGS: Mapping[str, str] = {
    "aws:eks/cluster:Cluster": "terrace:aws.cluster.deletionProtection",
    "aws:rds/cluster:Cluster": "terrace:aws.database.deletionProtection",
    "aws:lb/loadBalancer:LoadBalancer": "terrace:aws.loadBalancer.deletionProtection",
}


@dataclass(frozen=True, kw_only=True)
class Protected:
    """A resource that cannot be deleted as it is, and the command that changes this.

    `by_a_setting`: the command edits the settings, which must then be brought up.
    """

    name: str
    type: str
    command: str
    by_a_setting: bool


def find_protected(stack: str, exported: Mapping[str, Any]) -> list[Protected]:
    """The protected resources of `pulumi stack export` of `stack`.

    What Pulumi leaves in the account anyway (retained, or read only) is not among them.
    """
    resources = (exported.get("deployment") or {}).get("resources") or []
    found = []
    for resource in resources:
        if resource.get("retainOnDelete") or resource.get("external"):
            continue
        if (resource.get("protect") is True) or _is_protected_by_aws(resource):
            found.append(_describe(stack, resource))
    return found


def describe_protected(name: str, stack: str, protected: Sequence[Protected]) -> str:
    """Why `terrace down --stack name` did nothing, and the commands that let it go on."""
    listed = ", ".join(f"{item.name} ({item.type})" for item in protected)
    commands = [item.command for item in protected]
    if any(item.by_a_setting for item in protected):
        commands.append(f"pulumi up --stack {stack}")
    steps = "\n".join(f"  {command}" for command in [*commands, f"terrace down --stack {name}"])
    return (
        f"Nothing was destroyed. Protected against deletion in {stack}: {listed}. To take it all "
        f"down for good, with its data:\n{steps}\n"
        "What else is kept or lost, and by which settings: docs/runbooks/aws.md."
    )


def _is_protected_by_aws(resource: Mapping[str, Any]) -> bool:
    # The outputs are what AWS said last; the inputs are all there is of a half-made resource.
    for properties in (resource.get("outputs") or {}, resource.get("inputs") or {}):
        for flag in _FLAGS:
            if isinstance(properties.get(flag), bool):
                return bool(properties[flag])
    return False


def _describe(stack: str, resource: Mapping[str, Any]) -> Protected:
    kind, urn = str(resource["type"]), str(resource["urn"])
    setting = _SETTINGS.get(kind)
    if resource.get("protect") is True:
        command = f"pulumi state unprotect --stack {stack} --yes '{urn}'"
    elif setting:
        command = f"pulumi config set --stack {stack} --path '{setting}' false"
    else:
        command = f"# set {' or '.join(_FLAGS)} of {urn} to false in the program"
    return Protected(
        name=urn.rpartition("::")[2],
        type=kind,
        command=command,
        by_a_setting=resource.get("protect") is not True,
    )
