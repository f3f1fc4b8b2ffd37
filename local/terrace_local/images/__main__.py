"""``python -m terrace_local.images [NAME...]``: builds what is missing, prints what there is."""

import sys

from terrace_local.images import ImageError, ensure_images
from terrace_local.toolchain.progress import ConsoleProgress


def main(names: list[str]) -> int:
    try:
        with ConsoleProgress() as progress:
            images = ensure_images(names or None, progress=progress)
    except ImageError as failed:
        sys.stderr.write(f"images: {failed}\n")
        return 1
    for image in images.values():
        sys.stdout.write(f"{image.ref}  {image.archive}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
