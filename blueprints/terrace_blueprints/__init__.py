"""Terrace's Pulumi program. The only place that reads stack configuration or exports outputs."""
