"""RDS: Aurora clusters and what they stand on."""

from . import clusters, groups, instances

MODELS = (*groups.MODELS, *clusters.MODELS, *instances.MODELS)
