"""Settings of the substrate ``aws``: the arguments of ``FoundationAws``, in camelCase."""

import re
from typing import Any

import pulumi

from terrace_blueprints.setting_problems import SettingProblemError
from terrace_blueprints.spelling import (
    SpellingError,
    argument_names,
    argument_paths,
    arguments,
    camel_case,
)
from terrace_common.names import GATEWAY

# What the platform runs on aws: no simulator, and no database of its own.
REPOSITORIES = ("gateway", "translator", "prometheus", "secret-bootstrap")
HEALTH_PATH = "/readyz"
# The cluster's own pods (the default of ``AwsNodeGroup``), and those of stage 1: two of the gateway
# (1250m, 4352Mi) and one more while they are replaced, Prometheus (100m, 512Mi), and room for a Job
# (100m, 128Mi). A test compares it with the sizes that the platform asks for.
RESERVE = {"cpu": "6670m", "memory": "17020Mi", "pods": 15}
# Of `loadBalancer`: the platform's to say, not a stack's.
FIXED = ("target_port", "health_path", "health_port")


def foundation_arguments(document: Any) -> dict[str, Any]:
    """``terrace:aws`` as checked arguments of ``FoundationAws``, with what the platform fixes: its
    images, and the gateway's port and health.

    Raises ``SettingProblemError`` with the path in the file's spelling.
    """
    # The AWS SDK costs a second: only stacks on aws pay it.
    from terrace_components.aws.foundation_aws import (  # noqa: PLC0415
        FoundationAwsArgs,
        FoundationAwsArguments,
    )

    try:
        given = _with_platform(arguments(document, FoundationAwsArgs))
        FoundationAwsArguments.of(given)
    except SpellingError as error:
        raise SettingProblemError(error.path, str(error)) from None
    except pulumi.InputPropertyError as error:
        path, reason = str(error.property_path), str(error.reason)
        raise SettingProblemError(
            camel_case(path), _respelled(reason, argument_names(FoundationAwsArgs))
        ) from None
    return given


def _with_platform(given: dict[str, Any]) -> dict[str, Any]:
    made = {**given}
    made["registry"] = {"repositories": [*REPOSITORIES], **given.get("registry", {})}
    if "nodes" in given or "existing" not in given.get("cluster", {}):
        nodes = given.get("nodes", {})
        made["nodes"] = {**nodes, "reserve": {**RESERVE, **nodes.get("reserve", {})}}
    if "load_balancer" in given:
        for name in FIXED:
            if name in given["load_balancer"]:
                path = f"loadBalancer.{camel_case(name)}"
                raise SpellingError(
                    path,
                    f"cannot be set: the gateway answers at port {GATEWAY.port} and its health at "
                    f"{HEALTH_PATH}",
                )
        made["load_balancer"] = {
            "target_port": GATEWAY.port,
            "health_path": HEALTH_PATH,
            **given["load_balancer"],
        }
    return made


def as_settings(path: str, reason: str) -> tuple[str, str]:
    """A property that a part of ``FoundationAws`` names, such as ``zone.id``, and what it says of
    it, as the file spells them: ``terrace:aws.certificate.zone.id``."""
    from terrace_components.aws.foundation_args import FoundationAwsArgs  # noqa: PLC0415

    ends = [p for p in argument_paths(FoundationAwsArgs) if f".{p}".endswith(f".{path}")]
    whole = min(ends, key=lambda p: p.count("."), default=path)
    return (
        f"terrace:aws.{camel_case(whole)}",
        _respelled(reason, argument_names(FoundationAwsArgs)),
    )


def _respelled(reason: str, names: set[str]) -> str:
    """A component's words, with the names of its arguments as the file spells them."""
    return re.sub(r"\w+", lambda word: camel_case(word[0]) if word[0] in names else word[0], reason)
