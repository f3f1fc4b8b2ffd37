"""Container images of Terrace: built from the checkout, cached as archives, loaded into a node."""

from terrace_local.images.catalogue import IMAGES
from terrace_local.images.ensure import BuiltImage, ensure_images, load_images
from terrace_local.images.errors import ImageError

__all__ = ["IMAGES", "BuiltImage", "ImageError", "ensure_images", "load_images"]
