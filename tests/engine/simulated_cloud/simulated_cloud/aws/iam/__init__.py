"""IAM: roles, policies, profiles, and the documents that many services take."""

from . import attachments, lookups, policies, roles

MODELS = (*roles.MODELS, *policies.MODELS, *attachments.MODELS)
FUNCTIONS = lookups.FUNCTIONS
