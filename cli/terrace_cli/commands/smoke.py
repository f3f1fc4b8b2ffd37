"""`terrace smoke`."""

import click

from terrace_cli.endpoints import read_endpoints
from terrace_cli.errors import ExitCode
from terrace_cli.gateway_admin import GatewayAdmin
from terrace_cli.output import emit_json
from terrace_cli.smoke.run import CheckResult, run_smoke


@click.command("smoke")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def smoke_command(as_json: bool) -> int:
    """Prove the platform from outside, with public clients.

    Calls, refusals, and two books that agree. One line per check. Exit code 1 when any fails. Costs
    nothing real: the models are simulated.
    """

    def report(result: CheckResult) -> None:
        if not as_json:
            click.echo(result.line())

    with GatewayAdmin.connect() as admin:
        results = run_smoke(read_endpoints(), admin, report)
    failed = [result.name for result in results if not result.passed]
    if as_json:
        emit_json(
            {
                "passed": not failed,
                "checks": [
                    {
                        "name": result.name,
                        "passed": result.passed,
                        "expected": result.expected,
                        "seen": result.seen,
                        "seconds": result.seconds,
                    }
                    for result in results
                ],
            }
        )
    elif failed:
        click.echo(f"\n{len(failed)} of {len(results)} checks failed: {', '.join(failed)}.")
    else:
        click.echo(f"\nAll {len(results)} checks passed.")
    return ExitCode.CHECK_FAILED if failed else ExitCode.DONE
