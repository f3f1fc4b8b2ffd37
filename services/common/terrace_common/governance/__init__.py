"""The governance spec. Everything that others use of it is exported here."""

from terrace_common.governance.catalogue import (
    AWS_KEY_VARIABLES,
    BedrockProvider,
    Defaults,
    Model,
    OpenAIProvider,
    Provider,
    Residency,
)
from terrace_common.governance.compile import (
    CompiledGovernance,
    Standing,
    UnknownSubjectError,
    compile_caps,
    compile_governance,
)
from terrace_common.governance.compiled import (
    CapMode,
    CapturePolicy,
    DeclaredCap,
    Dimension,
    EffectivePolicy,
    Feature,
    Hours,
    Scope,
    Window,
    WindowKind,
    WindowUnit,
)
from terrace_common.governance.guardrails import BedrockGuardrail
from terrace_common.governance.organisation import App, Key, Org, Team, User
from terrace_common.governance.policies import Policy
from terrace_common.governance.quotas import Quota
from terrace_common.governance.sections import NAME_PATTERN, problem_text
from terrace_common.governance.spec import Governance, GovernanceError, load_governance

__all__ = [
    "AWS_KEY_VARIABLES",
    "NAME_PATTERN",
    "App",
    "BedrockGuardrail",
    "BedrockProvider",
    "CapMode",
    "CapturePolicy",
    "CompiledGovernance",
    "DeclaredCap",
    "Defaults",
    "Dimension",
    "EffectivePolicy",
    "Feature",
    "Governance",
    "GovernanceError",
    "Hours",
    "Key",
    "Model",
    "OpenAIProvider",
    "Org",
    "Policy",
    "Provider",
    "Quota",
    "Residency",
    "Scope",
    "Standing",
    "Team",
    "UnknownSubjectError",
    "User",
    "Window",
    "WindowKind",
    "WindowUnit",
    "compile_caps",
    "compile_governance",
    "load_governance",
    "problem_text",
]
