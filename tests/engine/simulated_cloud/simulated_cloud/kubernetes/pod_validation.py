"""What the API server refuses in a pod's spec."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..schema_check import Problem
from .objects import Manifest, containers, is_dns_label, quantity

# What runs until it is deleted restarts always; a Job's pod ends.
_RESTART = {
    "Deployment": ("Always",),
    "StatefulSet": ("Always",),
    "DaemonSet": ("Always",),
    "Job": ("OnFailure", "Never"),
    "CronJob": ("OnFailure", "Never"),
}
_PULL = ("Always", "IfNotPresent", "Never")
_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("httpGet", "tcpSocket", "exec", "grpc")


def check_pod(spec: Manifest, path: str, *, owner: str, claims: Sequence[str]) -> list[Problem]:
    """Problems of a pod's spec at ``path``. ``owner`` is the kind that makes the pod, ``claims``
    the names of a StatefulSet's volume claim templates."""
    problems = [*_check_containers(spec, path)]
    allowed = _RESTART.get(owner, ("Always", "OnFailure", "Never"))
    # A Job must say it; for the others the default is right.
    policy = spec.get("restartPolicy", "Always")
    if isinstance(policy, str) and policy not in allowed:
        problems.append(
            Problem(f"{path}.restartPolicy", f"{policy!r}; valid are {', '.join(allowed)}")
        )
    volumes = [volume.get("name") for volume in spec.get("volumes") or []]
    if len(set(map(str, volumes))) < len(volumes):
        problems.append(Problem(f"{path}.volumes", "volume names must be unique"))
    known = {*volumes, *claims}
    for place, container in containers(spec):
        problems += _check_mounts(container, f"{path}.{place}", known)
    for index, term in enumerate(spec.get("topologySpreadConstraints") or []):
        where = f"{path}.topologySpreadConstraints[{index}]"
        skew = term.get("maxSkew")
        if isinstance(skew, int | float) and skew < 1:
            problems.append(Problem(f"{where}.maxSkew", "must be at least 1"))
        if term.get("whenUnsatisfiable") not in (None, "DoNotSchedule", "ScheduleAnyway"):
            problems.append(
                Problem(f"{where}.whenUnsatisfiable", "valid are DoNotSchedule, ScheduleAnyway")
            )
    return problems


def _check_containers(spec: Manifest, path: str) -> Iterator[Problem]:
    if not spec.get("containers"):
        yield Problem(f"{path}.containers", "at least one is required")
    seen: set[str] = set()
    for place, container in containers(spec):
        where = f"{path}.{place}"
        name = container.get("name")
        if name is None:
            yield Problem(f"{where}.name", "is required")
        elif isinstance(name, str):
            if not is_dns_label(name):
                yield Problem(f"{where}.name", f"{name!r} is no RFC 1123 label")
            if name in seen:
                yield Problem(f"{where}.name", f"{name!r} is there twice")
            seen.add(name)
        image = container.get("image")
        if image is None or (
            isinstance(image, str) and (not image.strip() or image != image.strip())
        ):
            yield Problem(f"{where}.image", "is required, without blanks around it")
        if isinstance(pull := container.get("imagePullPolicy"), str) and pull not in _PULL:
            yield Problem(f"{where}.imagePullPolicy", f"valid are {', '.join(_PULL)}")
        yield from _check_ports(container, where)
        yield from _check_resources(container.get("resources") or {}, f"{where}.resources")
        yield from _check_environment(container, where)
        for probe in _PROBES:
            yield from _check_probe(container, probe, where)


def _check_ports(container: Manifest, where: str) -> Iterator[Problem]:
    names: list[str] = []
    for index, port in enumerate(container.get("ports") or []):
        number, name = port.get("containerPort"), port.get("name")
        if isinstance(number, int | float) and not 1 <= number <= 65535:
            yield Problem(f"{where}.ports[{index}].containerPort", f"{number:g} is not in 1-65535")
        if isinstance(name, str):
            if len(name) > 15 or not is_dns_label(name) or name.isdigit():
                yield Problem(
                    f"{where}.ports[{index}].name", f"{name!r}: at most 15 of a-z, 0-9 and -"
                )
            if name in names:
                yield Problem(f"{where}.ports[{index}].name", f"{name!r} is there twice")
            names.append(name)


def _check_resources(resources: Mapping[str, Any], where: str) -> Iterator[Problem]:
    amounts: dict[str, dict[str, float]] = {"requests": {}, "limits": {}}
    for section, found in amounts.items():
        given = resources.get(section)
        for name, value in given.items() if isinstance(given, Mapping) else ():
            if not isinstance(value, str | int | float):
                continue
            amount = quantity(value)
            if amount is None or amount < 0:
                yield Problem(f"{where}.{section}[{name!r}]", f"{value!r} is no quantity")
            else:
                found[name] = amount
    for name, amount in amounts["requests"].items():
        if amount > amounts["limits"].get(name, amount):
            yield Problem(f"{where}.requests[{name!r}]", "must not be above the limit")


def _check_environment(container: Manifest, where: str) -> Iterator[Problem]:
    for index, variable in enumerate(container.get("env") or []):
        name = variable.get("name")
        if name is None or (isinstance(name, str) and (not name or "=" in name)):
            yield Problem(f"{where}.env[{index}].name", f"{name!r} is no name of a variable")
        if variable.get("value") and variable.get("valueFrom"):
            yield Problem(f"{where}.env[{index}]", "value and valueFrom exclude each other")


def _check_probe(container: Manifest, probe: str, where: str) -> Iterator[Problem]:
    if not (spec := container.get(probe)) or not isinstance(spec, Mapping):
        return
    handlers = [name for name in _HANDLERS if spec.get(name)]
    if len(handlers) != 1:
        yield Problem(f"{where}.{probe}", f"exactly one of {', '.join(_HANDLERS)} is required")
        return
    port = (spec[handlers[0]] or {}).get("port") if handlers[0] != "exec" else None
    named = {p.get("name") for p in container.get("ports") or []}
    if isinstance(port, str) and not port.isdigit() and port not in named:
        yield Problem(f"{where}.{probe}", f"the container has no port named {port!r}")


def _check_mounts(container: Manifest, where: str, known: set[Any]) -> Iterator[Problem]:
    paths: list[str] = []
    for index, mount in enumerate(container.get("volumeMounts") or []):
        name, path = mount.get("name"), mount.get("mountPath")
        if isinstance(name, str) and name not in known:
            yield Problem(f"{where}.volumeMounts[{index}].name", f"no volume is named {name!r}")
        if isinstance(path, str):
            if path in paths:
                yield Problem(f"{where}.volumeMounts[{index}].mountPath", f"{path} is there twice")
            paths.append(path)
