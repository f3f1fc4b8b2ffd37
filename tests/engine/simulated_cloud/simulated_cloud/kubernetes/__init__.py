"""The simulated Kubernetes API: what a server refuses, and what never gets ready."""
