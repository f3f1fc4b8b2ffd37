"""`python -m terrace_local.toolchain [ensure STAGE [TOOL...]]`.

Without arguments: which binaries there are. `ensure` makes the stage's tools available (only those
named, if any are) and prints the folder that holds them. It needs no root.
"""

import sys

from terrace_local.toolchain import ConsoleProgress, ToolchainError, ensure
from terrace_local.toolchain.status import status

USAGE = "usage: python -m terrace_local.toolchain [ensure STAGE [TOOL...]]\n"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["ensure", stage, *only] if stage.isdigit():
            try:
                with ConsoleProgress() as progress:
                    toolchain = ensure(int(stage), only=only, progress=progress)
            except ToolchainError as error:
                sys.stderr.write(f"{error}\n")
                return 1
            sys.stdout.write(f"{toolchain.bin_dir}\n")
        case []:
            for tool in status():
                checked = "verified" if tool.verified else ""
                row = f"{tool.name:28} {tool.version:10} {tool.source:11} {checked:9}"
                sys.stdout.write(f"{row} {tool.location or ''}\n")
        case _:
            sys.stderr.write(USAGE)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
