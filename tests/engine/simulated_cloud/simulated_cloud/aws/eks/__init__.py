"""EKS: clusters, node groups, add-ons, access entries, Pod Identity."""

from . import access, addons, cluster, lookups, node_groups

MODELS = (*cluster.MODELS, *node_groups.MODELS, *addons.MODELS, *access.MODELS)
FUNCTIONS = lookups.FUNCTIONS
