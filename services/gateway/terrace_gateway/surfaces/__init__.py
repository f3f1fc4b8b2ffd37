"""The public surfaces: bodies from allow-lists, answers rebuilt."""
