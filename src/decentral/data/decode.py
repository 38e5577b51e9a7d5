"""Decoding of image files, without torch or torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from decentral.errors import ConfigError

if TYPE_CHECKING:
    from PIL.Image import Image


def open_image(file: Path) -> Image:
    """Return the decoded image in RGB. Raises ConfigError that names the file if it is broken."""
    import PIL.Image

    try:
        with PIL.Image.open(file) as image:
            if image.mode.startswith("I;16"):  # converting would clip the 16 bits, not scale them
                return image.point(lambda value: value / 256).convert("L").convert("RGB")
            if image.mode in ("I", "F"):
                raise ValueError(f"images of mode {image.mode} have no defined range of values")
            return image.convert("RGB")
    except Exception as error:  # PIL raises OSError, SyntaxError, ValueError, struct.error ... for broken files
        raise ConfigError(f"data.path: the image {file} cannot be decoded ({error}): replace or delete it.") from error


def resize_and_crop(image: Image, shorter_side: int, size: int) -> Image:
    """Resize (bilinear, antialiased) so that the shorter side is `shorter_side`, then cut out the central square."""
    from PIL.Image import Resampling

    width, height = image.size
    if min(width, height) != shorter_side:
        scale = shorter_side / min(width, height)
        width, height = max(shorter_side, int(width * scale)), max(shorter_side, int(height * scale))
        image = image.resize((width, height), Resampling.BILINEAR)
    if (width, height) == (size, size):
        return image
    left, top = round((width - size) / 2), round((height - size) / 2)
    return image.crop((left, top, left + size, top + size))
