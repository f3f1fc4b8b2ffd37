"""`python -m terrace_cli`."""

from terrace_cli.main import main

if __name__ == "__main__":
    main()
