"""The guard: every model call is authenticated, bounded, reserved, made once and settled."""

VERSION = "0.1.0"
