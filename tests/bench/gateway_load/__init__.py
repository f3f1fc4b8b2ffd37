"""Parts of ``gateway_overhead.py``."""
