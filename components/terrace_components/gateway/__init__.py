"""Stage 1: the governance gateway."""
