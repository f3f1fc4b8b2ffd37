"""Elastic Load Balancing v2: load balancers, target groups, listeners and their rules."""

from . import listeners, load_balancers, target_groups

MODELS = (*load_balancers.MODELS, *target_groups.MODELS, *listeners.MODELS)
