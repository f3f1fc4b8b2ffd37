"""EC2: networks, security groups, endpoints, launch templates and their look-ups."""

from . import compute, endpoints, lookups, network, routes, security_groups

MODELS = (
    *network.MODELS,
    *routes.MODELS,
    *security_groups.MODELS,
    *endpoints.MODELS,
    *compute.MODELS,
)
FUNCTIONS = lookups.FUNCTIONS
