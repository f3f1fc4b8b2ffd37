"""S3: buckets, and the settings that are resources of their own."""

from . import buckets, settings

MODELS = (*buckets.MODELS, *settings.MODELS)
FUNCTIONS = buckets.FUNCTIONS
