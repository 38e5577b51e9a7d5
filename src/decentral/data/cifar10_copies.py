"""Copies of CIFAR-10 in other files than the published ones: a tree of images, or arrays in an .npz file."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np

from decentral.data.cache import cached
from decentral.data.decoded_tree import decoded_tree
from decentral.data.folder import find_tree
from decentral.errors import ConfigError
from decentral.store.files import at_home

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COUNTS = {"train": 50_000, "test": 10_000}
_SPLITS = ("train", "test", "val")
_SIZE = 32
_NAMES = {
    "train_images": ("train_images", "x_train"),
    "train_labels": ("train_labels", "y_train"),
    "test_images": ("test_images", "x_test"),
    "test_labels": ("test_labels", "y_test"),
}


def is_tree(path: str) -> bool:
    """Whether `path` holds train/ and test/ (or val/), as an image folder does."""
    root = at_home(path)
    return (root / "train").is_dir() and any((root / name).is_dir() for name in _SPLITS[1:])


def is_arrays(path: str) -> bool:
    """Whether `path` is called an .npz file."""
    return path.endswith(".npz")


def check_place(path: str) -> None:
    """Refuse what can be seen not to be a folder that holds, or could hold, CIFAR-10. Raises ConfigError."""
    root = at_home(path)
    if not is_arrays(path) and root.is_file():
        raise ConfigError(
            f"data.path={path} is a file: give the folder that holds cifar-10-batches-py, one with train/<class>/ and "
            "test/<class>/, or an .npz file."
        )
    if is_tree(str(root.parent)) and root.name in _SPLITS:
        raise ConfigError(
            f"data.path={path} is the {root.name} folder of a tree of images: give the folder above it, "
            f"data.path={root.parent}."
        )
    there = [name for name in _SPLITS if any((root / name / label).is_dir() for label in CLASSES)]
    if there and not is_tree(path):
        lacks = "test" if "train" in there else "train"
        raise ConfigError(
            f"data.path={path} is half a tree of images: it has {there[0]}/ and no {lacks}/, with a folder for each "
            "class in it. Copy what is missing, or give the folder that holds cifar-10-batches-py."
        )


def check_tree(path: str) -> str:
    """Which files the images are, such as 'JPEG'. Raises ConfigError if they are not those of CIFAR-10, by number."""
    return _kind(path, find_tree(path).digest())


@lru_cache(maxsize=8)
def _kind(path: str, _digest: str) -> str:
    tree = find_tree(path)
    if different := set(tree.classes) ^ set(CLASSES):
        one = min(different)
        odd = f"there is no class folder {one}/" if one in CLASSES else f"it has a class folder {one}/"
        raise ConfigError(
            f"data.path={path} is no CIFAR-10, whose classes are {', '.join(CLASSES)}: {odd} ({len(different)} such "
            "differences): use data=imagefolder for images of your own."
        )
    for split, root in (("train", tree.train), ("test", tree.test)):
        if (found := tree.count(root)) != COUNTS[split]:
            raise ConfigError(
                f"data.path={path} is no CIFAR-10: {root.name}/ has {found} images, not {COUNTS[split]}: use "
                "data=imagefolder for images of your own."
            )
    kinds = {Path(file).suffix.lower().lstrip(".").replace("jpeg", "jpg") for file in tree.files(tree.test)[0]}
    return "JPEG" if "jpg" in kinds else " and ".join(sorted(kinds)).upper()


def from_tree(path: str) -> Path:
    """The arrays of a tree, in the cache. Raises ConfigError for what `check_tree` refuses, and images that are broken
    or of another size."""
    check_tree(path)
    return decoded_tree(find_tree(path), _SIZE, exactly=True)


def digest_of_arrays(path: str) -> str:
    """A digest of an .npz file's contents, by the checksums in it. Raises ConfigError if it is none."""
    if not at_home(path).is_file():
        raise ConfigError(f"data.path={path} is not a regular file: give an .npz file that is there.")
    try:
        with zipfile.ZipFile(at_home(path)) as file:
            members = sorted((one.filename, one.file_size, one.CRC) for one in file.infolist())
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"data.path={path} cannot be read as an .npz file ({error}): give one that numpy saved."
        ) from error
    return hashlib.sha256(repr(members).encode()).hexdigest()[:16]


def from_arrays(path: str) -> Path:
    """The arrays of an .npz file, in the cache: images [N, 32, 32, 3] or [N, 3, 32, 32] of bytes, labels [N] or [N, 1].

    They are called train_images, train_labels, test_images, test_labels, or x_train, y_train, x_test, y_test.
    Raises ConfigError if they are not CIFAR-10's, by name, shape and number.
    """

    def build(folder: Path) -> None:
        try:
            with np.load(at_home(path), allow_pickle=False) as file:
                arrays = {name: _chosen(path, file, names) for name, names in _NAMES.items()}
        except ConfigError:
            raise
        except Exception as error:  # numpy and zipfile raise what they like for what is none
            raise ConfigError(f"data.path={path} cannot be read: {' '.join(str(error).split())}") from error
        for split, count in COUNTS.items():
            np.save(folder / f"{split}_images.npy", _images(path, f"{split}_images", arrays, count))
            np.save(folder / f"{split}_labels.npy", _labels(path, f"{split}_labels", arrays, count))

    return cached(f"cifar10-npz-1-{digest_of_arrays(path)}", build)


def _chosen(path: str, file: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    name = next((name for name in names if name in file), None)
    if name is None:
        raise ConfigError(
            f"data.path={path} has no array {' or '.join(names)}: it has {', '.join(sorted(file)) or 'none'}."
        )
    return file[name]


def _images(path: str, name: str, arrays: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    images = arrays[name]
    if images.dtype == np.uint8 and images.shape == (count, _SIZE, _SIZE, 3):
        images = images.transpose(0, 3, 1, 2)
    if images.dtype != np.uint8 or images.shape != (count, 3, _SIZE, _SIZE):
        raise ConfigError(
            f"data.path={path}: {name} is {images.dtype} {list(images.shape)}, not bytes of [{count}, 32, 32, 3]."
        )
    return np.ascontiguousarray(images)


def _labels(path: str, name: str, arrays: Mapping[str, np.ndarray], count: int) -> np.ndarray:
    labels = arrays[name].reshape(-1)
    whole = np.issubdtype(labels.dtype, np.integer)
    if not whole or labels.shape != (count,) or set(np.unique(labels)) != set(range(len(CLASSES))):
        raise ConfigError(
            f"data.path={path}: {name} are not {count} numbers of classes from 0 to {len(CLASSES) - 1}, all of which "
            "occur."
        )
    return labels.astype(np.int64)
