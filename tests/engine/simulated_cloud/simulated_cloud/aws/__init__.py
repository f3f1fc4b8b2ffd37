"""The simulated AWS provider: one module per service."""
