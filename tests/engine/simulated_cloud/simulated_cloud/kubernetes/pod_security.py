"""Pod Security admission: what the levels `baseline` and `restricted` refuse, in a simple version.

Host probes, SELinux, AppArmor, /proc mounts, sysctls and Windows are left out.
"""

from collections.abc import Iterator
from typing import Any

from .objects import Manifest, containers

LEVELS = ("privileged", "baseline", "restricted")
ENFORCE = "pod-security.kubernetes.io/enforce"
_BASELINE_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_RESTRICTED_VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(pod_spec: Manifest, level: str) -> list[str]:
    """What of a pod's spec the level forbids; nothing at ``privileged``."""
    found: list[str] = []
    if level in ("baseline", "restricted"):
        found += _baseline(pod_spec)
    if level == "restricted":
        found += _restricted(pod_spec)
    return found


def _baseline(spec: Manifest) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            yield f"host namespaces ({name}=true)"
    for volume in spec.get("volumes") or []:
        if volume.get("hostPath"):
            yield f'hostPath volumes (volume "{volume.get("name")}")'
    for _, container in containers(spec):
        security = container.get("securityContext") or {}
        name = container.get("name")
        if security.get("privileged"):
            yield f'privileged (container "{name}")'
        added = set((security.get("capabilities") or {}).get("add") or [])
        if extra := sorted(added - _BASELINE_CAPABILITIES):
            yield f'non-default capabilities (container "{name}": {", ".join(extra)})'
        if any(port.get("hostPort") for port in container.get("ports") or []):
            yield f'hostPort (container "{name}")'
    for where, security in _contexts(spec):
        if (security.get("seccompProfile") or {}).get("type") == "Unconfined":
            yield f"seccompProfile Unconfined ({where})"


def _restricted(spec: Manifest) -> Iterator[str]:
    pod = spec.get("securityContext") or {}
    for volume in spec.get("volumes") or []:
        kinds = {key for key, value in volume.items() if key != "name" and value is not None}
        if bad := sorted(kinds - _RESTRICTED_VOLUMES):
            yield f'restricted volume types (volume "{volume.get("name")}": {", ".join(bad)})'
    for _, container in containers(spec):
        security = container.get("securityContext") or {}
        name = container.get("name")
        capabilities = security.get("capabilities") or {}
        if security.get("allowPrivilegeEscalation") is not False:
            yield f'allowPrivilegeEscalation != false (container "{name}")'
        if "ALL" not in (capabilities.get("drop") or []):
            yield f'unrestricted capabilities (container "{name}" must drop ALL)'
        if set(capabilities.get("add") or []) - {"NET_BIND_SERVICE"}:
            yield f'unrestricted capabilities (container "{name}" adds more than NET_BIND_SERVICE)'
        if not _either(security, pod, "runAsNonRoot"):
            yield f'runAsNonRoot != true (container "{name}")'
        profile = _either(security, pod, "seccompProfile") or {}
        if profile.get("type") not in _PROFILES:
            yield f'seccompProfile (container "{name}" must have {" or ".join(_PROFILES)})'
    for where, security in _contexts(spec):
        if security.get("runAsUser") == 0:
            yield f"runAsUser=0 ({where})"


def _contexts(spec: Manifest) -> Iterator[tuple[str, Manifest]]:
    yield "pod", spec.get("securityContext") or {}
    for _, container in containers(spec):
        yield f'container "{container.get("name")}"', container.get("securityContext") or {}


def _either(container: Manifest, pod: Manifest, key: str) -> Any:
    return container[key] if container.get(key) is not None else pod.get(key)
