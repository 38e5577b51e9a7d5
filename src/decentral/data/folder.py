"""Trees of images on disk: <split>/<class>/<image>."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from decentral.errors import ConfigError

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif")


@dataclass(frozen=True)
class Tree:
    """Where the training and the test images are; the class of an image is its folder, numbered in sorted order."""

    train: Path
    test: Path
    classes: list[str]

    def count(self, split: Path) -> int:
        """How many images. Raises ConfigError for a class without any."""
        return sum(_count(split / name, (split / name).stat().st_mtime_ns) for name in self.classes)

    def files(self, split: Path) -> tuple[list[str], np.ndarray]:
        """Paths relative to the split, sorted by class and name, and labels [N] int64."""
        names = [sorted(_images(split / name)) for name in self.classes]
        labels = np.repeat(np.arange(len(names)), [len(n) for n in names]).astype(np.int64)
        return [f"{c}/{name}" for c, group in zip(self.classes, names, strict=True) for name in group], labels

    def stamps(self, split: Path) -> Iterator[tuple[str, int, int]]:
        """(relative path, size, time of change) of every image: what a cache depends on."""
        for name in self.classes:
            with os.scandir(split / name) as entries:
                found = sorted((e.name, e.stat()) for e in entries if is_image(e.name))
            yield from ((f"{name}/{file}", stat.st_size, stat.st_mtime_ns) for file, stat in found)

    def changed(self) -> tuple[int, ...]:
        """When an image last came, went or was renamed, class by class, in nanoseconds: quick to find out."""
        return tuple((split / name).stat().st_mtime_ns for split in (self.train, self.test) for name in self.classes)


@lru_cache(maxsize=4096)  # a study asks for it with each of its configurations; ImageNet has 1.3 million files
def _count(folder: Path, _changed_ns: int) -> int:
    return len(_images(folder))


def _images(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        images = {entry.name: _is_regular(entry) for entry in entries if is_image(entry.name)}
    other = next((file for file, regular in images.items() if not regular), None)
    if other is not None:  # reading a pipe, say, would never end
        raise ConfigError(f"data.path: {folder / other} is no regular file: remove it, or give it another name.")
    if not images:
        raise ConfigError(
            f"data.path: there are no images in {folder} (looked for {', '.join(EXTENSIONS)}): add some, "
            "or delete the folder from both the training and the test images."
        )
    return list(images)


def _is_regular(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself
        return False


def is_image(name: str) -> bool:
    """By its extension; hidden files are none."""
    return name.lower().endswith(EXTENSIONS) and not name.startswith(".")


def find_tree(path: str | None, single_folder: bool = False) -> Tree:
    """The tree at `path`: train/ and test/ (or val/) with the same class folders in each.

    With `single_folder` the class folders lie directly in `path`, and their images are for training and for testing.
    Raises ConfigError if there is no such tree.
    """
    if path is None:
        raise ConfigError("data.path is not set: give the folder that holds train/<class>/ and test/<class>/.")
    root = Path(path).expanduser()
    if not root.is_dir():
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
