"""Rules that the API server itself enforces, for pods that no Pulumi program made."""

from typing import Any, TypedDict, cast

import pulumi
import pulumi_kubernetes as k8s
from pydantic import Field, field_validator

from terrace_components.arguments import Arguments

API_VERSION = "admissionregistration.k8s.io/v1"
POLICY = "ValidatingAdmissionPolicy"
BINDING = "ValidatingAdmissionPolicyBinding"


class AdmissionPoliciesArgs(TypedDict):
    """Arguments of ``AdmissionPolicies``."""

    policies: list[dict[str, Any]]
    """Manifests of kind ``ValidatingAdmissionPolicy`` and ``ValidatingAdmissionPolicyBinding``, in
    Kubernetes' own spelling (``terrace_policies.admission`` renders them). A binding names a policy
    of the list."""


class _AdmissionPolicies(Arguments):
    policies: list[dict[str, Any]] = Field(min_length=1)

    @field_validator("policies")
    @classmethod
    def _whole(cls, manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen: set[tuple[str, str]] = set()
        for position, manifest in enumerate(manifests):
            where = f"manifest {position}"
            kind, name = manifest.get("kind"), _name(manifest)
            if kind not in {POLICY, BINDING} or manifest.get("apiVersion") != API_VERSION:
                raise ValueError(f"{where} must be a {POLICY} or {BINDING} of {API_VERSION}")
            if not name or not isinstance(manifest.get("spec"), dict):
                raise ValueError(f"{where} must have metadata.name and spec")
            if (kind, name) in seen:
                raise ValueError(f"{where}: {kind} {name} is there twice")
            seen.add((kind, name))
        for manifest in manifests:
            policy = manifest["spec"].get("policyName")
            if manifest["kind"] == BINDING and (POLICY, policy) not in seen:
                raise ValueError(f"binding {_name(manifest)} names no policy here: {policy!r}")
        return manifests


class AdmissionPolicies(pulumi.ComponentResource):
    """ValidatingAdmissionPolicies with their bindings, each under its own stable name, so that a
    changed rule is an update of one object.

    Creates: ValidatingAdmissionPolicy and ValidatingAdmissionPolicyBinding per manifest.
    """

    names: pulumi.Output[list[str]]
    """Names of the policies; known when all of them are in force."""

    def __init__(
        self,
        name: str,
        args: AdmissionPoliciesArgs,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("terrace:index:AdmissionPolicies", name, None, opts)
        given = _AdmissionPolicies.of(args)
        child = pulumi.ResourceOptions(parent=self)
        policies: dict[str, k8s.admissionregistration.v1.ValidatingAdmissionPolicy] = {}
        for manifest in given.policies:
            if manifest["kind"] == POLICY:
                policies[_name(manifest)] = k8s.admissionregistration.v1.ValidatingAdmissionPolicy(
                    f"{name}-{_name(manifest)}",
                    metadata=manifest["metadata"],
                    spec=manifest["spec"],
                    opts=child,
                )
        bound: list[pulumi.Output[str]] = []
        for manifest in given.policies:
            if manifest["kind"] == BINDING:
                binding = k8s.admissionregistration.v1.ValidatingAdmissionPolicyBinding(
                    f"{name}-{_name(manifest)}-binding",
                    metadata=manifest["metadata"],
                    spec=manifest["spec"],
                    opts=pulumi.ResourceOptions(
                        parent=self, depends_on=[policies[manifest["spec"]["policyName"]]]
                    ),
                )
                bound.append(binding.id)
        every = pulumi.Output.all(*(policy.id for policy in policies.values()), *bound)
        self.names = every.apply(lambda _: sorted(policies))
        self.register_outputs({"names": self.names})


def _name(manifest: dict[str, Any]) -> str:
    metadata: object = manifest.get("metadata")
    name = cast(dict[str, object], metadata).get("name") if isinstance(metadata, dict) else None
    return name if isinstance(name, str) else ""
