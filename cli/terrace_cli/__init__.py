"""The `terrace` command line: a thin skin over Pulumi, the services and `terrace_local`."""

__version__ = "0.1.0"
