"""`python -m simulated_cloud aws|eks|kubernetes` serves a provider; any other word is a command for
people."""

import sys

PACKAGES = ("aws", "eks", "kubernetes")


def main() -> int:
    if len(sys.argv) > 1 and sys.argv[1] in PACKAGES:
        return _serve(sys.argv[1])
    from .command_line import main as command_line

    return command_line(sys.argv[1:])


def _serve(package: str) -> int:
    from importlib import import_module

    module = import_module(f".{package}.provider", __package__)
    module.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
