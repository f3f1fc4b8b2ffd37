"""What goes wrong while images are being made available."""


class ImageError(Exception):
    """An image could not be had. The message says which, at which step, and where the log is."""
