"""The entry point: commands, and the one place where errors become a sentence and an exit code."""

import os
import sys
import traceback
from collections.abc import Callable
from importlib import import_module

import click

from terrace_cli import __version__
from terrace_cli.errors import CliError, ExitCode
from terrace_common.one_line import one_line

_EPILOG = """\b
Exit codes: 0 done, 1 a check failed, 2 wrong usage or config, 3 the machine lacks something,
4 held by another clone or run, 5 a part did not come up in time, 6 the platform is not running,
130 interrupted. TERRACE_DEBUG=1 shows the traceback of an error.
"""


class _LazyGroup(click.Group):
    """Imports a command's module when that command is asked for: `terrace version` stays quick."""

    _modules = {  # noqa: RUF012  a constant of this class, never changed
        "up": "platform", "preview": "platform", "down": "platform", "status": "platform",
        "endpoints": "platform", "env": "platform", "toolchain": "platform", "version": "platform",
        "key": "gateway", "spend": "gateway", "reconcile": "gateway", "smoke": "smoke",
        "policy": "policy", "governance": "governance", "kill": "kill", "unkill": "kill",
        "models": "models", "prices": "prices", "audit": "audit",
        "quotas": "quotas",
        "guardrails": "guardrails",
        "budgets": "budgets", "alerts": "budgets",
    }  # fmt: skip

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self._modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        name = self._modules.get(cmd_name)
        if name is None:
            return None
        module = import_module(f"terrace_cli.commands.{name}")
        return getattr(module, f"{cmd_name}_command")


@click.group(
    cls=_LazyGroup,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="terrace", message="%(prog)s %(version)s")
def terrace() -> None:
    """Terrace: an AI platform that a company climbs in three steps."""


def main() -> None:
    """Run `terrace` and leave with a documented exit code; never with a traceback."""
    code = run(lambda: terrace.main(prog_name="terrace", standalone_mode=False))
    if code == ExitCode.INTERRUPTED:
        # Threads that start the cluster or build images must not hold up somebody who said stop;
        # both survive being killed, so they survive this.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(command: Callable[[], object]) -> int:
    """Call a command and turn what it raises into a sentence on stderr and an exit code."""
    try:
        result = command()
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show()
        return ExitCode.USAGE
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except BrokenPipeError:
        # The reader of our output is gone (`terrace status | head`); nothing can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.DONE
    except Exception as error:  # the boundary: whatever is left becomes one sentence
        return _failed(error)
    return result if isinstance(result, int) else ExitCode.DONE


def _interrupted() -> int:
    from terrace_cli.interruption import stop_children  # noqa: PLC0415

    stop_children()
    click.echo("Interrupted. Running the same command again goes on from here.", err=True)
    return ExitCode.INTERRUPTED


def _failed(error: Exception) -> int:
    if os.environ.get("TERRACE_DEBUG"):
        traceback.print_exception(error)
    code = _exit_code(error)
    if code is None:
        code = ExitCode.CHECK_FAILED
        text = (
            f"Something unexpected: {type(error).__name__}: {error}. "
            "This is a defect of Terrace; TERRACE_DEBUG=1 shows where."
        )
    else:
        text = str(error)
    text = "\n".join(map(one_line, text.split("\n")))  # a server's words may be in it
    click.echo(click.style("Error: ", fg="red") + text, err=True)
    return code


def _exit_code(error: Exception) -> int | None:
    if isinstance(error, CliError):
        return error.exit_code
    # Only a command that used terrace_local can have raised its errors; others need no import.
    name = type(error).__module__
    if not name.startswith("terrace_local."):
        return None
    from terrace_cli.local_errors import exit_code_of  # noqa: PLC0415

    return exit_code_of(error)
