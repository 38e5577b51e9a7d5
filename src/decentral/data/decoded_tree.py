"""A tree of image files as arrays in the cache."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from decentral.data.cache import cached
from decentral.data.decode import decode
from decentral.data.folder import Tree


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
