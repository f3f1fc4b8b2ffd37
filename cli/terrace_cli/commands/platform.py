"""Commands about the platform as a whole: up, preview, down, status, endpoints, env, ..."""

import sys

import click

from terrace_cli import __version__
from terrace_cli.endpoints import Endpoints, read_endpoints
from terrace_cli.errors import ExitCode, UsageError
from terrace_cli.output import Progress, describe_seconds, emit_json, emit_table
from terrace_cli.places import STACK

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")


stack_option = click.option(
    "--stack",
    metavar="NAME",
    help="A stack of Pulumi.NAME.yaml on aws or existing, in your own Pulumi; on aws NAME and "
    "NAME-platform. Without it, or with `local`: this machine's cluster.",
)

policy_option = click.option(
    "--policy-pack",
    "packs",
    multiple=True,
    type=click.Path(exists=True, resolve_path=True),
    help="With --stack: a policy pack that Pulumi runs, such as policies/terrace-policies.",
)


@click.command("up")
@stack_option
@click.option(
    "--stage",
    type=int,
    help="How far to climb: 1 (2 and 3 come in later releases). Kept in the stack's settings file; "
    "without it the stage there holds.",
)
@policy_option
@click.option("--yes", is_flag=True, help="With --stack: do not ask before changing things.")
def up_command(stack: str | None, stage: int | None, packs: tuple[str, ...], yes: bool) -> None:
    """Bring the platform up; a second time changes nothing.

    On this machine's cluster (without --stack) it needs root on Linux. Settings and machine are
    checked first, and nothing is changed before all checks have passed.
    """
    if _is_local(stack):
        from terrace_cli.platform_up import bring_up  # noqa: PLC0415

        progress = Progress()
        stage, endpoints = bring_up(stage, progress)
        _print_summary(stage, endpoints, progress)
        return
    from terrace_cli import cloud_stacks  # noqa: PLC0415

    stage = cloud_stacks.bring_up(str(stack), stage=stage, yes=yes, packs=packs)
    click.echo(f"\nStage {stage} of {stack} stands. What comes next is in docs/aws.md.", err=True)


@click.command("preview")
@click.option(
    "--stack",
    metavar="NAME",
    help="A stack of Pulumi.NAME.yaml on aws or existing; on aws NAME and NAME-platform.",
)
@policy_option
def preview_command(stack: str | None, packs: tuple[str, ...]) -> None:
    """Show what `up --stack NAME` would change.

    Makes the empty stack in Pulumi's backend where there is none. A platform can be previewed once
    its substrate stands.
    """
    if _is_local(stack):
        raise UsageError(
            "`terrace preview` is for stacks on aws and existing: add --stack NAME. For the local "
            'stack: eval "$(terrace env)" and `pulumi preview --stack local`.'
        )
    from terrace_cli import cloud_stacks  # noqa: PLC0415

    for waiting in cloud_stacks.preview(str(stack), packs=packs):
        click.echo(
            f"\n{waiting.name} was not previewed: the platform can only be previewed once the "
            f"substrate stands, because its program reads what {stack} puts out. "
            f"First `pulumi up --stack {stack}`, then push the images (docs/aws.md, "
            f'"Images into ECR"), then `terrace up --stack {stack}`.',
            err=True,
        )


@click.command("down")
@stack_option
@click.option("--keep-data", is_flag=True, help="Keep ledger, keys, bill and Pulumi state.")
@click.option("--yes", is_flag=True, help="Delete the data without asking.")
def down_command(stack: str | None, keep_data: bool, yes: bool) -> int:
    """Stop and remove what `up` made, with its data.

    Says which data goes before it goes, and asks. Without a terminal to ask on, data goes only with
    --yes and stays with --keep-data. With --stack Pulumi shows what it would destroy, and asks; the
    platform goes first, then its substrate.
    """
    if _is_local(stack):
        return _local_down(keep_data=keep_data, yes=yes)
    if keep_data:
        raise UsageError(
            "--keep-data is for the local stack. What stays on AWS is said by the stack's settings "
            "(docs/aws.md). Nothing was changed."
        )
    from terrace_cli import cloud_stacks  # noqa: PLC0415

    gone = [item.name for item in cloud_stacks.take_down(str(stack), yes=yes)]
    click.echo(
        f"\nDown: {', '.join(gone)}. The empty stacks and their history stay in Pulumi's backend; "
        "`pulumi stack rm NAME` removes one.",
        err=True,
    )
    return ExitCode.DONE


def _is_local(stack: str | None) -> bool:
    return stack in (None, STACK)


def _local_down(*, keep_data: bool, yes: bool) -> int:
    from terrace_cli.platform_down import (  # noqa: PLC0415
        check_down,
        describe_loss,
        holdings,
        take_down,
    )

    check_down(keep_data=keep_data)
    found = holdings()
    click.echo(describe_loss(found, keep_data=keep_data), err=True)
    if found and not keep_data and not yes:
        if sys.stdin is None or not sys.stdin.isatty():  # None: it was closed
            raise UsageError(
                "not a terminal: add --yes to delete the data, or --keep-data to keep it. "
                "Nothing was changed."
            )
        if not click.confirm("Delete it?", err=True):
            click.echo("Nothing was changed.", err=True)
            return ExitCode.DONE
    progress = Progress()
    report = take_down(progress, keep_data=keep_data)
    for leftover in report.left:
        click.echo(f"Could not be removed: {leftover}", err=True)
    click.echo(f"Down in {describe_seconds(progress.total_seconds)}.", err=True)
    return ExitCode.CHECK_FAILED if report.left else ExitCode.DONE


@click.command("status")
@json_option
def status_command(as_json: bool) -> int:
    """Say in words what runs and what is wrong. Exit code 6 when something is."""
    from terrace_cli.platform_status import describe, read_status  # noqa: PLC0415

    status = read_status()
    if as_json:
        emit_json(status.as_json())
    else:
        click.echo(describe(status))
    return ExitCode.DONE if status.is_well else ExitCode.NOT_RUNNING


@click.command("endpoints")
@json_option
def endpoints_command(as_json: bool) -> None:
    """Where the platform answers.

    The base URLs of gateway, admin, prometheus and simulator.
    """
    endpoints = read_endpoints()
    if as_json:
        emit_json(endpoints.as_json())
    else:
        emit_table(("what", "url"), list(endpoints.as_json().items()))


@click.command("env")
def env_command() -> None:
    """Print shell exports for pulumi and kubectl by hand.

    Use it as eval "$(terrace env)".
    """
    from terrace_cli.local_backend import BACKEND_VARIABLE  # noqa: PLC0415
    from terrace_cli.platform_status import is_running  # noqa: PLC0415
    from terrace_cli.pulumi_environment import pulumi_variables, shell_exports  # noqa: PLC0415
    from terrace_cli.tools import bin_directory  # noqa: PLC0415

    click.echo(shell_exports(pulumi_variables(bin_directory())))
    click.echo(
        f"{BACKEND_VARIABLE} is this machine's backend, for the local stack only, and wins over "
        "`pulumi login` in this shell; for stacks on aws or existing open a new shell",
        err=True,
    )
    if not is_running():
        click.echo("there is no running cluster; `terrace up` makes one", err=True)


@click.group("toolchain")
def toolchain_command() -> None:
    """The binaries that the local platform is made of."""


@toolchain_command.command("status")
@json_option
def toolchain_status(as_json: bool) -> None:
    """Which binaries are there, which version, and where each would come from."""
    from terrace_cli.tools import tool_rows  # noqa: PLC0415

    rows = tool_rows()
    if as_json:
        emit_json({"tools": rows})
    else:
        header = tuple(rows[0]) if rows else ("name",)
        emit_table(header, [[str(value) for value in row.values()] for row in rows])


@click.command("version")
def version_command() -> None:
    """Print the version of this command."""
    click.echo(f"terrace {__version__}")


def _print_summary(stage: int, endpoints: Endpoints, progress: Progress) -> None:
    click.echo(
        f"\nStage {stage} stands: gateway, translator, Postgres, model simulator, Prometheus.\n"
    )
    emit_table(("endpoint", "url"), list(endpoints.as_json().items()))
    click.echo("\nNext:")
    click.echo(
        "  terrace smoke                                   prove it, with the public clients"
    )
    click.echo("  terrace key create --team T --budget-usd 1.50   a key for a team")
    click.echo("  terrace spend --by team                         what it has cost")
    click.echo("  terrace status | terrace down\n")
    parts = ", ".join(f"{name} {describe_seconds(took)}" for name, took in progress.seconds.items())
    click.echo(f"Took {describe_seconds(progress.total_seconds)}: {parts}.")
