"""LiteLLM's proxy app on a Unix socket, as a translator and nothing more."""
