"""From image files to arrays of bytes in the cache, with several processes. Imports neither torch nor torchvision."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from decentral.data.cache import cached
from decentral.data.folder import Tree
from decentral.errors import ConfigError
from decentral.host.machine import num_cores
from decentral.host.processes import carried_out
from decentral.terminal.display import counted

if TYPE_CHECKING:
    from PIL.Image import Image

CHUNK = 256  # images per task
MANY = 2000  # from this many on, the user is told what is going on


def open_image(file: Path) -> Image:
    """The decoded image in RGB. Raises ConfigError that names the file if it is broken."""
    import PIL.Image

    try:
        with PIL.Image.open(file) as image:
            if image.mode.startswith("I;16"):  # converting would clip the 16 bits, not scale them
                return image.point(lambda value: value / 256).convert("L").convert("RGB")
            if image.mode in ("I", "F"):
                raise ValueError(f"images of mode {image.mode} have no defined range")
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


def decode(
    root: Path, files: list[str], array_file: Path, image_size: int, num_processes: int | None, exactly: bool = False
) -> None:
    """Write images as `array_file`, a .npy of [N, 3, image_size, image_size] uint8.

    `exactly`: they have that size. Raises ConfigError that names an image that is broken, or of another size then,
    OSError if the disk is full.
    """
    shape = (len(files), 3, image_size, image_size)
    offset = np.lib.format.open_memmap(array_file, mode="w+", dtype=np.uint8, shape=shape).offset
    tasks = [(root, files[i : i + CHUNK], array_file, offset + i * 3 * image_size**2, image_size, exactly)
             for i in range(0, len(files), CHUNK)]  # fmt: skip
    if num_processes is None:
        num_processes = num_cores()
    title = f"Decoding {len(files)} images of {root}"
    with counted(title, len(tasks), show=len(files) >= MANY) as advance:
        for _ in carried_out(_decode_chunk, tasks, num_processes):
            advance()


def _decode_chunk(root: Path, files: list[str], array_file: Path, offset: int, image_size: int, exactly: bool) -> None:
    images = []
    for name in files:
        image = open_image(root / name)
        if exactly and image.size != (image_size, image_size):
            raise ConfigError(
                f"data.path: the image {root / name} has {image.width} x {image.height} pixels, not {image_size} x "
                f"{image_size}: replace it, or use data=imagefolder for images of your own."
            )
        images.append(np.asarray(resize_and_crop(image, image_size, image_size)))
    with open(array_file, "r+b") as out:  # writing, unlike a memory map, reports a full disk as an error
        out.seek(offset)
        out.write(np.stack(images).transpose(0, 3, 1, 2).tobytes())


def decoded_tree(tree: Tree, image_size: int, num_processes: int | None = None, exactly: bool = False) -> Path:
    """The folder of the four arrays (see `read_arrays`), decoded unless no file was added, removed or changed since.

    The shorter side of an image is resized to `image_size`, then it is centre-cropped to a square; where they have to
    have that size `exactly`, ConfigError is raised that names one of another size.
    """
    words = f"imagefolder-2 {image_size}{' exactly' * exactly} {tree.digest()}"

    def build(folder: Path) -> None:
        for split, root in (("train", tree.train), ("test", tree.test)):
            files, labels = tree.files(root)
            np.save(folder / f"{split}_labels.npy", labels)
            decode(root, files, folder / f"{split}_images.npy", image_size, num_processes, exactly)

    return cached(f"imagefolder-{hashlib.sha256(words.encode()).hexdigest()[:16]}", build)
