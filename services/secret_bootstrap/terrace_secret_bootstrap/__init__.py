"""Secrets that are born in the cluster: created once from a spec, never overwritten or printed."""
