"""The Pulumi program: reads configuration and files, builds the layers, exports addresses."""

from collections.abc import Callable
from pathlib import Path

import pulumi
import pulumi_kubernetes as k8s
from pulumi.runtime.config import get_config_env

from terrace_blueprints.governance_spec import governance_text
from terrace_blueprints.layers import StageOne, build_stage_one
from terrace_blueprints.settings import PLATFORM_SUFFIX, Settings, SettingsError, load_settings
from terrace_blueprints.settings_aws import as_settings
from terrace_blueprints.stack_outputs import read_output
from terrace_blueprints.substrates.aws import aws_substrate
from terrace_blueprints.substrates.aws_contract import OUTPUT
from terrace_blueprints.substrates.contract import Substrate, SubstrateError
from terrace_blueprints.substrates.existing import existing_substrate
from terrace_blueprints.substrates.local import read_local_substrate
from terrace_common.governance import GovernanceError
from terrace_common.names import GATEWAY, GATEWAY_ADMIN, MODEL_SIMULATOR, PROMETHEUS
from terrace_components.arguments import LateArgumentError


class ProgramError(Exception):
    """The program cannot run; ``str()`` is one message for a person."""


def run() -> None:
    """Read this stack's configuration and build it. Raises ``ProgramError``."""
    source = f"Pulumi.{pulumi.get_stack()}.yaml"
    try:
        settings = load_settings(get_config_env(), source)
    except SettingsError as error:
        raise ProgramError(str(error)) from None
    LateArgumentError.spelling = _in_words_of(source, settings)
    try:
        if settings.part == "substrate":
            _run_substrate(settings)
        else:
            _run_platform(settings)
    except (SettingsError, SubstrateError) as error:
        raise ProgramError(f"{source}: {error}") from None
    except GovernanceError as error:
        raise ProgramError(str(error)) from None
    except pulumi.InputPropertyError as error:
        path, reason = str(error.property_path), str(error.reason)
        raise ProgramError(LateArgumentError.spelling(path, reason)) from None


def _in_words_of(source: str, settings: Settings) -> Callable[[str, str], str]:
    """How errors of components are told: file, setting, reason."""

    def told(path: str, reason: str) -> str:
        if settings.part == "substrate":
            path, reason = as_settings(path, reason)
        return f"{source}: {path}: {reason}"

    return told


def _run_substrate(settings: Settings) -> None:
    # Only stacks on aws pay the second that AWS' SDK costs.
    from terrace_blueprints.aws_foundation import (  # noqa: PLC0415
        build_aws_foundation,
        export_aws_foundation,
    )

    export_aws_foundation(settings, build_aws_foundation(settings))


def _run_platform(settings: Settings) -> None:
    substrate = read_substrate(settings, project_folder())
    governance = governance_text(settings, project_folder())
    export(settings, substrate, build(settings, substrate, governance))


def project_folder() -> Path:
    """The folder of ``Pulumi.yaml``. Not every language host tells it, so it is looked for."""
    here = Path.cwd()
    return next((p for p in (here, *here.parents) if (p / "Pulumi.yaml").exists()), here)


def read_substrate(settings: Settings, root: Path) -> Substrate:
    """Where the platform runs. Raises ``SubstrateError`` when that is not there."""
    if settings.substrate == "local":
        return read_local_substrate(Path(settings.substrate_file))
    database_ca = _database_ca(settings, root)
    if settings.substrate == "existing":
        return existing_substrate(settings, database_ca=database_ca)
    stack = settings.substrate_stack or _substrate_stack(pulumi.get_stack())
    told = read_output(stack, OUTPUT)
    substrate = aws_substrate(told, settings, stack=stack, database_ca=database_ca)
    _of_the_same_account(str(told["account"]), stack)
    return substrate


def _of_the_same_account(account: str, stack: str) -> None:
    """Raises ``SubstrateError`` when the credentials are of another account than the substrate:
    roles and pods' identities would be made where no cluster is."""
    import pulumi_aws as aws  # noqa: PLC0415  the AWS SDK costs a second

    try:
        caller = aws.get_caller_identity().account_id
    except Exception as error:  # the SDK has no narrower one for a refused call
        raise SubstrateError(f"AWS does not say whose these credentials are: {error}") from None
    if caller != account:
        raise SubstrateError(
            f"stack {stack!r} stands in account {account}, but these credentials are of account "
            f"{caller}: use credentials (aws:profile, AWS_PROFILE) of {account}"
        )


def _substrate_stack(stack: str) -> str:
    if not stack.endswith(PLATFORM_SUFFIX):
        raise SubstrateError(
            f"terrace:substrateStack: is required, because the name of this stack does not end in "
            f"{PLATFORM_SUFFIX}"
        )
    return stack.removesuffix(PLATFORM_SUFFIX)


def _database_ca(settings: Settings, root: Path) -> str | None:
    if settings.database_ca_file is None:
        return None
    path = root / settings.database_ca_file
    try:
        text = path.read_text()
    except OSError as error:
        raise SettingsError(
            f"terrace:databaseCaFile: cannot read {path}: {error.strerror}"
        ) from None
    except UnicodeDecodeError:
        text = ""
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise SettingsError(f"terrace:databaseCaFile: {path} has no certificate (PEM)")
    return text


def build(settings: Settings, substrate: Substrate, governance: str) -> StageOne:
    """Register the platform's resources."""
    provider = k8s.Provider(
        "cluster",
        kubeconfig=substrate.cluster.kubeconfig,
        context=substrate.cluster.context,
        # Fixed, or a renewed kubeconfig would replace everything in the cluster.
        cluster_identifier=substrate.cluster.identifier,
        enable_server_side_apply=True,
        upsert_existing_objects=substrate.cluster.belongs_to_stack,
    )
    return build_stage_one(
        substrate,
        governance=governance,
        otlp_endpoint=settings.otlp_endpoint,
        opts=pulumi.ResourceOptions(provider=provider),
    )


def export(settings: Settings, substrate: Substrate, stage: StageOne) -> None:
    """Outputs for people and scripts: addresses, never a secret. Each is known when its part
    answers."""
    exposure = substrate.exposure
    pulumi.export("stage", settings.stage)
    pulumi.export("isolation", substrate.isolation)
    gateway = stage.gateway.url
    if exposure.load_balancer is not None and stage.binding is not None:
        url = exposure.load_balancer.url
        # Pods are ready, and so is the Deployment, when the load balancer's health check passes.
        pulumi.export("gateway_url", gateway.apply(lambda _: url))
    else:
        pulumi.export("gateway_url", _address(substrate, GATEWAY.name, gateway))
    pulumi.export("admin_url", _address(substrate, GATEWAY_ADMIN.name, stage.gateway.admin_url))
    pulumi.export("prometheus_url", _address(substrate, PROMETHEUS.name, stage.observability.url))
    if stage.simulator is not None:
        pulumi.export(
            "simulator_url", _address(substrate, MODEL_SIMULATOR.name, stage.simulator.url)
        )
    if stage.bedrock is not None:
        pulumi.export("bedrock_role_arn", stage.bedrock.role_arn)
        pulumi.export("bedrock_model_arns", stage.bedrock.model_arns)
    if stage.invocation_logs is not None:
        pulumi.export("bedrock_log_group", stage.invocation_logs.log_group)
    if substrate.next_steps:
        pulumi.export("next_steps", [*substrate.next_steps])


def _address(substrate: Substrate, service: str, inside: pulumi.Output[str]) -> pulumi.Output[str]:
    """Address of a Service for people, known when it answers; inside of the cluster where there is
    no other."""
    return inside.apply(lambda address: substrate.exposure.url(service) or address)
