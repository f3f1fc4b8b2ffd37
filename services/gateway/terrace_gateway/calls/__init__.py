"""One call from admission to settlement."""
