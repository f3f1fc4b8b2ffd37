"""Entry point of `pulumi up`: settings -> substrate -> the layers of the stage -> exports."""

import pulumi

from terrace_blueprints.program import ProgramError, run

try:
    run()
except ProgramError as error:
    # RunError reaches the person as its message alone, without a traceback.
    raise pulumi.RunError(str(error)) from None
