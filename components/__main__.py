"""Hosts Terrace's components as a Pulumi plugin, for programs in other languages."""

from terrace_components.hosting import host

if __name__ == "__main__":
    host()
