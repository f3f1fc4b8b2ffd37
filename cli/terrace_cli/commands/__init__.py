"""The commands, grouped by what they talk to."""
