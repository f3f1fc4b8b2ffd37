"""Which models may be called, where they run, and where prompts are logged."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from terrace_policies.catalogue import GOVERNANCE_KEY, Catalogue, catalogues
from terrace_policies.checks import each_resource
from terrace_policies.iam import (
    CARRIERS,
    Statement,
    documents,
    has_wildcard,
    is_one_guardrail,
    model_arn,
    statements,
)
from terrace_policies.model import Finding, Parameter, Parameters, Reference, Rule, Says, Severity
from terrace_policies.resources import Resource, Stack
from terrace_policies.rules.references import GATEWAY_GUIDANCE
from terrace_policies.rules.storage import BUCKET, ENCRYPTION, LOG_GROUP

INVOCATION_LOGGING = (
    "aws:bedrockmodel/invocationLoggingConfiguration:InvocationLoggingConfiguration"
)
INVOKES = ("bedrock:invoke", "bedrock:startasyncinvoke")
APPLIES = ("bedrock:applyguardrail",)


def _allowed(resource: Resource) -> Iterator[Statement]:
    for document in documents(resource):
        yield from (s for s in statements(document) if s.touches("bedrock"))


def _wildcards(resource: Resource, given: Parameters) -> Iterator[Says]:
    del given
    for statement in _allowed(resource):
        wide = [a for a in statement.actions if has_wildcard(a) and _of_bedrock(a)]
        if wide:
            yield Finding(f"{statement.path}.Action", f"allows {', '.join(wide)}")
        kinds = {"model": (_invokes, _is_one_model), "guardrail": (_applies, is_one_guardrail)}
        asked = {kind: is_one for kind, (allows, is_one) in kinds.items() if allows(statement)}
        for text in statement.resources if asked else ():
            if not any(is_one(text) for is_one in asked.values()):
                yield Finding(
                    f"{statement.path}.Resource", f"{text} is more than one {' or '.join(asked)}"
                )


def _is_one_model(text: str) -> bool:
    arn = model_arn(text)
    return arn is not None and not has_wildcard(arn.region + arn.model)


def _invokes(statement: Statement) -> bool:
    return _allows(statement, INVOKES)


def _applies(statement: Statement) -> bool:
    return _allows(statement, APPLIES)


def _allows(statement: Statement, names: tuple[str, ...]) -> bool:
    """Whether an action of the statement begins with one of ``names``, or may by its wildcards."""
    for action in statement.actions:
        fixed = action.replace("?", "*").partition("*")[0]
        if _of_bedrock(action) and (
            action.startswith(names)
            or (has_wildcard(action) and any(name.startswith(fixed) for name in names))
        ):
            return True
    return False


def _of_bedrock(action: str) -> bool:
    return fnmatchcase("bedrock", action.partition(":")[0])


def _listed(stack: Stack, given: Parameters) -> Iterator[Says]:
    carriers = [r for r in stack.of(*CARRIERS)]
    try:
        known = [c for c in catalogues(stack, given["catalogue"])]
    except OSError as error:
        yield Finding("", f"parameter catalogue: {error.filename}: {error.strerror}")
        return
    models: dict[str, str] = {}
    for catalogue in known:
        models |= catalogue.aws_models()
    granted: set[str] = set()

    def check(resource: Resource) -> Iterator[Says]:
        for statement in filter(_invokes, _allowed(resource)):
            for text in statement.resources:
                arn = model_arn(text)
                if arn is None or has_wildcard(arn.model):
                    continue  # a wildcard is another rule's
                if arn.kind == "application-inference-profile":
                    continue  # its name is no model
                granted.add(arn.model_id)
                if not known:
                    yield Finding(statement.path, "no catalogue to compare with; name its file in"
                                  " the parameter catalogue")  # fmt: skip
                    return
                if arn.model_id not in models:
                    yield Finding(
                        f"{statement.path}.Resource", f"{arn.model_id} is not in the catalogue"
                    )

    said = list(each_resource(carriers, check))
    yield from said
    if granted and all(isinstance(s, Finding) for s in said):
        for catalogue in known:
            yield from _not_granted(catalogue, granted)


def _not_granted(catalogue: Catalogue, granted: set[str]) -> Iterator[Says]:
    for model, name in catalogue.aws_models(by_identity=True).items():
        if model not in granted:
            yield Finding(
                "data.governance.yaml", f"model {name} ({model}) is granted to nobody: every call"
                " would be refused", urn=catalogue.urn,
            )  # fmt: skip


def _residency(stack: Stack, given: Parameters) -> Iterator[Says]:
    specs = list(catalogues(stack, ""))
    allowed = [str(region) for region in given["allowed-regions"]] or _declared(specs)
    declared = bool(allowed)
    if not declared:
        homes = {str(p["region"]) for spec in specs for p in _of_aws(spec)}
        allowed = sorted({f"{_geography(region)}-*" for region in homes})

    def check(resource: Resource) -> Iterator[Says]:
        for statement in _allowed(resource):
            for text in statement.resources:
                arn = model_arn(text)
                if arn is None or has_wildcard(arn.region):
                    continue  # a wildcard is another rule's
                if arn.model.startswith("global.") or not arn.region:
                    if "global" not in allowed:
                        yield Finding(
                            f"{statement.path}.Resource", f"{text} may run anywhere in the world"
                        )
                elif allowed and not _is_in(arn.region, allowed):
                    yield Finding(
                        f"{statement.path}.Resource",
                        f"{arn.model} runs in {arn.region}; allowed: {', '.join(allowed)}",
                    )

    yield from each_resource(stack.of(*CARRIERS), check)
    for spec in specs:
        yield from _providers(spec, allowed if declared else [], given["resident-providers"])


def _providers(spec: Catalogue, allowed: list[str], resident: list[str]) -> Iterator[Says]:
    for index, provider in enumerate(spec.section("providers")):
        at = f"data.{GOVERNANCE_KEY}: providers[{index}]"
        name, region = provider.get("name"), provider.get("region")
        if not allowed or _in_cluster(provider.get("api_base") or provider.get("endpoint")):
            continue
        if region and not _is_in(str(region), allowed):
            yield Finding(f"{at}.region", f"{region} is outside {', '.join(allowed)}", urn=spec.urn)
        if not region and name not in resident:
            yield Finding(f"{at}.name", f"nobody said where {name} keeps its data", urn=spec.urn)


def _declared(specs: list[Catalogue]) -> list[str]:
    found: list[str] = []
    for spec in specs:
        section = spec.spec.get("residency")
        regions: Any = section.get("regions") if isinstance(section, dict) else None
        found += [str(region) for region in regions or []]
    return found


def _of_aws(spec: Catalogue) -> list[dict[str, Any]]:
    providers = spec.section("providers")
    return [p for p in providers if p.get("region") and not p.get("endpoint")]


def _geography(region: str) -> str:
    return "us-gov" if region.startswith("us-gov") else region.partition("-")[0]


def _is_in(region: str, allowed: list[str]) -> bool:
    """By name, or by a beginning such as ``eu-*``."""
    return any(fnmatchcase(region, pattern) for pattern in allowed)


def _in_cluster(url: object) -> bool:
    """``http://service.namespace`` or a name of the cluster's own domain."""
    scheme, _, rest = str(url or "").partition("://")
    host = rest.partition("/")[0].partition(":")[0]
    return host.endswith((".svc", ".cluster.local")) or (scheme == "http" and host.count(".") == 1)


def _logging(stack: Stack, given: Parameters) -> Iterator[Says]:
    del given

    def check(logging: Resource) -> Iterator[Says]:
        for group in stack.of(LOG_GROUP):
            used = stack.refers(logging, "loggingConfig", group)
            if used and not group.has("kmsKeyId"):
                yield Finding("loggingConfig", f"log group {group.name} has no KMS key")
        for bucket in stack.of(BUCKET):
            if stack.refers(logging, "loggingConfig", bucket) and not any(
                stack.refers(e, "bucket", bucket) for e in stack.of(ENCRYPTION)
            ):
                yield Finding("loggingConfig", f"bucket {bucket.name} is not encrypted with a key")

    yield from each_resource(stack.of(INVOCATION_LOGGING), check)


_OWASP = "OWASP LLM Top 10 2025"

RULES = (
    Rule(
        id="bedrock-no-wildcards",
        description="Bedrock permissions name actions, models, guardrails and regions one by one",
        why="With a wildcard every new and every dear model can be called, with no price known.",
        remediation="Use BedrockAccess, which makes the document from the catalogue.",
        severity=Severity.CRITICAL,
        references=(
            Reference(_OWASP, "LLM10 unbounded consumption"),
            GATEWAY_GUIDANCE,
        ),
        types=CARRIERS,
        resource=_wildcards,
    ),
    Rule(
        id="bedrock-models-listed",
        description="Bedrock permissions and the catalogue name exactly the same models",
        why="A model that only IAM knows is called past the guard; one that only the catalogue"
        " knows fails for every caller.",
        remediation="Add the model to the governance spec, or take it out of the document.",
        severity=Severity.HIGH,
        references=(
            Reference(_OWASP, "LLM03 supply chain"),
            Reference("field report", "aws-samples/serverless-patterns#3093"),
        ),
        stack=_listed,
        parameters={
            "catalogue": Parameter(str, "", "governance spec, if the stack holds none"),
        },
    ),
    Rule(
        id="model-residency",
        description="Models run only where data may go",
        why="A cross-region profile moves prompts to every region it names; global ones anywhere.",
        remediation="Choose a profile of your geography, or widen `residency` of the spec.",
        severity=Severity.HIGH,
        references=(
            Reference("GDPR", "Art. 44 (transfers)"),
            Reference("field report", "anthropics/claude-code#561"),
        ),
        stack=_residency,
        parameters={
            "allowed-regions": Parameter(
                list,
                [],
                "regions that may see prompts, eu-* and global too;"
                " default: `residency` of the spec, else the geography of its Bedrock providers",
                pattern=r"global|[a-z]{2,}(-[a-z0-9]+)*(-\*)?",
            ),
            "resident-providers": Parameter(
                list, [], "third-party providers known to stay in the allowed regions", "any"
            ),
        },
    ),
    Rule(
        id="bedrock-logs-encrypted",
        description="The log of model invocations is encrypted with a KMS key",
        why="It may hold prompts and answers, and is the provider's own book for reconciliation.",
        remediation="Set `key_arn` of BedrockInvocationLogs.",
        severity=Severity.HIGH,
        references=(Reference(_OWASP, "LLM02 sensitive information disclosure"),),
        stack=_logging,
    ),
)
