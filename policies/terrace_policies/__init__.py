"""Policy as code: one rule book, run at preview by a pack and at admission by the API server."""
