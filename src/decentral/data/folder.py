"""Trees of images on disk: <split>/<class>/<image>."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from decentral.errors import ConfigError
from decentral.store.digests import folder_digest, walked
from decentral.store.files import at_home

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Of images, as torchvision's `ImageFolder` knows them."""
_RECENT_NS = 2_000_000_000
"""A folder that has changed so lately may change again without another time of change."""


@dataclass(frozen=True)
class Tree:
    """Where the training and the test images are; the class of an image is its folder, numbered in sorted order."""

    train: Path
    test: Path
    classes: list[str]

    def count(self, split: Path) -> int:
        """How many images. Raises ConfigError for a class without any."""
        return sum(len(_class(split, name).images) for name in self.classes)

    def files(self, split: Path) -> tuple[list[str], np.ndarray]:
        """Paths relative to the split, in the order of torchvision's `ImageFolder`, and labels [N] int64."""
        names = [_class(split, name).images for name in self.classes]
        labels = np.repeat(np.arange(len(names)), [len(n) for n in names]).astype(np.int64)
        return [file for group in names for file in group], labels

    def digest(self) -> str:
        """A digest of the images' names and contents."""
        return "".join(folder_digest(split, self.files(split)[0]) for split in (self.train, self.test))

    def notes(self) -> tuple[str, ...]:
        """Which images are left out."""
        splits = dict.fromkeys((self.train, self.test))
        found = [split / file for split in splits for name in self.classes for file in _class(split, name).left_out]
        number = f"{len(found):,} image{'s' * (len(found) > 1)} that are hidden or GIFs"
        return (f"left out of the data: {number}, such as {found[0]}",) if found else ()


class _Class(NamedTuple):
    """What a folder of a class holds, with all folders below it."""

    seen_ns: int
    folders: dict[str, tuple[int, tuple[str, ...]]]
    images: list[str]
    left_out: list[str]


_CLASSES: dict[Path, _Class] = {}  # a study asks with each of its configurations; ImageNet has 1.3 million files


def _class(split: Path, name: str) -> _Class:
    """Images of a class, with paths relative to the split. Looks through its folders unless none has changed.

    Raises ConfigError for an image that is not a regular file: reading a pipe, say, would never end.
    """
    folder = split / name
    known = _CLASSES.get(folder)
    if known is None or any(_state(each, known.seen_ns) != state for each, state in known.folders.items()):
        seen_ns, found = time.time_ns(), dict[str, list[str]]()
        for each, files, others in walked(str(folder)):
            found[each] = files
            if odd := next((other for other in others if other.lower().endswith(EXTENSIONS)), None):
                raise ConfigError(f"data.path: {each}/{odd} is not a regular file: remove it, or give it another name.")
        folders = {each: _state(each, seen_ns) for each in found}
        files = [f"{each}/{file}"[len(f"{split}/") :] for each in sorted(found) for file in sorted(found[each])]
        images = [file for file in files if file.lower().endswith(EXTENSIONS) and not _is_hidden(file)]
        left_out = [file for file in {*files}.difference(images) if file.lower().endswith((*EXTENSIONS, ".gif"))]
        known = _CLASSES[folder] = _Class(seen_ns, folders, images, sorted(left_out))
    if not known.images:
        raise ConfigError(
            f"data.path: there are no images in {folder} (looked for {', '.join(EXTENSIONS)}): add some, "
            "or delete the folder from both the training and the test images."
        )
    return known


def _state(folder: str, seen_ns: int) -> tuple[int, tuple[str, ...]]:
    """When a folder last changed, and what is in it if that was just before it was seen."""
    try:
        changed = os.stat(folder).st_mtime_ns
        return changed, tuple(os.listdir(folder)) if changed > seen_ns - _RECENT_NS else ()
    except OSError:  # it is gone
        return 0, ()


def _is_hidden(file: str) -> bool:
    return "/." in f"/{file}"


def find_tree(path: str | None, single_folder: bool = False) -> Tree:
    """The tree at `path`: train/ and test/ (or val/) with the same class folders in each.

    With `single_folder` the class folders lie directly in `path`, and their images are for training and for testing.
    Raises ConfigError if there is no such tree.
    """
    if path is None:
        raise ConfigError("data.path is not set: give the folder that holds train/<class>/ and test/<class>/.")
    root = at_home(path)
    if not os.path.isdir(root):
        raise ConfigError(
            f"data.path={path} is not a folder: give the one that holds train/<class>/ and test/<class>/."
        )
    train = root / "train"
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if single_folder:
        if train.is_dir() or test is not None:
            raise ConfigError(f"data.path={path} has train/ or test/ folders: leave out data.single_folder=true.")
        train = test = root
    elif not train.is_dir() or test is None:
        raise ConfigError(_what_is_missing(path, root, train.is_dir(), test is not None))
    classes, test_classes = _folders(train), _folders(test)
    if not classes:
        raise ConfigError(f"data.path: there are no class folders in {train}: images belong in {train}/<class>/.")
    if different := sorted(set(classes) ^ set(test_classes)):
        where = train if different[0] in classes else test
        raise ConfigError(
            f"data.path={path}: the class folders of {train.name}/ and {test.name}/ differ, for example "
            f"'{different[0]}' is only in {where.name}/ ({len(different)} in all): both need the same ones."
        )
    return Tree(train, test, classes)


def _what_is_missing(path: str, root: Path, has_train: bool, has_test: bool) -> str:
    if has_train or has_test:
        missing = "test/ (or val/)" if has_train else "train/"
        return f"data.path={path} has no folder {missing}: it must hold train/<class>/ and test/<class>/ (or val/)."
    message = f"data.path={path} must hold train/<class>/ and test/<class>/ (or val/), and has neither"
    if num_folders := len(_folders(root)):
        return (
            f"{message}: if its {num_folders} folders are classes, data=imagenet with data.single_folder=true trains "
            "and tests on the same images."
        )
    return f"{message}."


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir())
