"""Folders of images, <split>/<class>/<image>: small enough for memory, or as large as ImageNet."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from decentral.data.dataset import NO_TEST, AugmentedImages, DivisibleData, ImageData, cached, counts, no_column
from decentral.data.decode import open_image, resize_and_crop
from decentral.errors import ConfigError
from decentral.host.machine import num_cores
from decentral.host.processes import carried_out
from decentral.settings import setting
from decentral.store.digests import folder_digest, walked
from decentral.store.files import at_home, natural_order
from decentral.terminal.display import unless_quick

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory
    from decentral.data.loading.streamed import Streamed


EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
"""Extensions of image files, those of torchvision's `ImageFolder`."""
_RECENT_NS = 2_000_000_000
"""A folder that has changed this recently may change again without a new modification time."""


CLASS = "class"
"""The name of the level of folders that are the classes."""


@dataclass(frozen=True)
class Tree:
    """The folders of training and test images; the class of an image is its folder, numbered in natural order."""

    train: Path
    test: Path
    folders: dict[Path, dict[str, list[str]]]
    """The folders of each class, relative to its split."""
    classes: list[str]

    def count(self, split: Path) -> int:
        """Return the number of images. Raises ConfigError for an empty class."""
        return sum(self.counts(split))

    def counts(self, split: Path) -> list[int]:
        """Return the number of images of each class. Raises ConfigError for an empty class."""
        return [len(self._images(split, name)) for name in self.classes]

    def files(self, split: Path) -> tuple[list[str], np.ndarray]:
        """Return paths relative to the split, by class, and labels [N] int64."""
        names = [self._images(split, name) for name in self.classes]
        labels = np.repeat(np.arange(len(names)), [len(n) for n in names]).astype(np.int64)
        return [file for group in names for file in group], labels

    def digest(self) -> str:
        """Return a digest of the images' names and contents, in the order of torchvision's `ImageFolder`."""
        named = replace(self, classes=sorted(self.classes))
        return "".join(folder_digest(split, named.files(split)[0]) for split in (self.train, self.test))

    def notes(self) -> tuple[str, ...]:
        """Return notes on the images that are left out."""
        splits = dict.fromkeys((self.train, self.test))
        parts = [(split, part) for split in splits for name in self.classes for part in self.folders[split][name]]
        left_out = [split / file for split, part in parts for file in _class(split, part).left_out]
        number = f"{len(left_out):,} image{'s' * (len(left_out) > 1)} that are hidden or GIFs"
        return (f"left out of the data: {number}, such as {left_out[0]}",) if left_out else ()

    def _images(self, split: Path, name: str) -> list[str]:
        """Return the images of a class. Raises ConfigError for an empty folder."""
        return [image for folder in self.folders[split][name] for image in _class(split, folder).images]


class _Class(NamedTuple):
    """The content of a class folder, including subfolders."""

    seen_ns: int
    folders: dict[str, tuple[int, tuple[str, ...]]]
    images: list[str]
    left_out: list[str]


_CLASSES: dict[Path, _Class] = {}  # a study reads it for each of its configurations; ImageNet has 1.3 million files


def _class(split: Path, name: str) -> _Class:
    """Return the images of a class, with paths relative to the split. Its folders are searched unless none has changed.

    Raises ConfigError for an image that is not a regular file: reading a pipe would never end.
    """
    folder = split / name
    known = _CLASSES.get(folder)
    if known is None or any(_state(each, known.seen_ns) != state for each, state in known.folders.items()):
        seen_ns, found = time.time_ns(), dict[str, list[str]]()
        for each, files, others in walked(str(folder)):
            found[each] = files
            if odd := next((other for other in others if other.lower().endswith(EXTENSIONS)), None):
                raise ConfigError(f"data.path: {each}/{odd} is not a regular file: remove or rename it.")
        folders = {each: _state(each, seen_ns) for each in found}
        files = [f"{each}/{file}"[len(f"{split}/") :] for each in sorted(found) for file in sorted(found[each])]
        images = [file for file in files if file.lower().endswith(EXTENSIONS) and "/." not in f"/{file}"]
        left_out = [file for file in {*files}.difference(images) if file.lower().endswith((*EXTENSIONS, ".gif"))]
        known = _CLASSES[folder] = _Class(seen_ns, folders, images, sorted(left_out))
    if not known.images:
        raise ConfigError(
            f"data.path: there are no images in {folder} (looked for {', '.join(EXTENSIONS)}): add some, "
            "or delete the folder from both the training and the test images."
        )
    return known


def _state(folder: str, seen_ns: int) -> tuple[int, tuple[str, ...]]:
    """Return when a folder last changed, and its content if that was just before it was seen."""
    try:
        changed = os.stat(folder).st_mtime_ns
        return changed, tuple(os.listdir(folder)) if changed > seen_ns - _RECENT_NS else ()
    except OSError:  # it is gone
        return 0, ()


def find_tree(
    path: str | None, test_share: float | None = None, test_path: str | None = None, levels: Sequence[str] = (CLASS,)
) -> Tree:
    """Return the tree at `path`: train/ and test/ (or val/) with the same class folders in each, at these levels.

    With `test_share`, or `test_path` (a folder with the test images by class), there is only train/, or the class
    folders are directly in `path`. Raises ConfigError if there is no such tree.
    """
    place = "".join(f"<{level}>/" for level in levels)
    if path is None:
        raise ConfigError(f"data.path is not set: give the folder that holds train/{place} and test/{place}.")
    root = at_home(path)
    if not os.path.isdir(root):
        raise ConfigError(f"data.path={path} is not a folder: give the one that holds train/{place} and test/{place}.")
    train = root / "train"
    test = next((root / name for name in ("test", "val") if (root / name).is_dir()), None)
    if test_path is not None:
        if test_share is not None:
            raise ConfigError(f"data.test_share={test_share:g} and data.test={test_path} exclude each other: use one.")
        test = at_home(test_path)
        if not test.is_dir():
            raise ConfigError(f"data.test={test_path} is not a folder: give the one that holds {place} of test images.")
        train = train if train.is_dir() else root
    elif test_share is not None:
        if test is not None:
            raise ConfigError(f"data.path={path} has {test.name}/: leave out data.test_share={test_share:g}.")
        train = test = train if train.is_dir() else root
    elif not train.is_dir() or test is None:
        missing = [name for name, there in (("train/", train.is_dir()), ("test/ (or val/)", test)) if not there]
        alone = test is None and (len(missing) == 1 or _folders(root))
        hint = f"; or give another folder of test images with data.test=; or {NO_TEST}" if alone else ""
        raise ConfigError(
            f"data.path={path} has no folder {' and no '.join(missing)}: give one with train/{place} and "
            f"test/{place} (or val/){hint}."
        )
    folders = {split: _folders_by_class(split, levels) for split in (train, test)}
    classes, test_classes = list(folders[train]), folders[test]
    if not classes:
        raise ConfigError(f"data.path: there are no class folders in {train}: images belong in {train}/{place}.")
    if different := sorted(set(classes) ^ set(test_classes)):
        where = train if different[0] in classes else test
        raise ConfigError(
            f"data.path={path}: the class folders of {train.name}/ and {test.name}/ differ, for example "
            f"'{different[0]}' is only in {where.name}/ ({len(different)} differences in all): use the same folders "
            "in both, or name the levels, as in data.folders=[writer,class]."
        )
    return Tree(train, test, folders, classes)


def _folders_by_class(split: Path, levels: Sequence[str]) -> dict[str, list[str]]:
    """Return the folders of each class, relative to the split; classes and folders are in natural order."""
    folders, classes = [""], dict[str, list[str]]()
    for _ in levels:
        folders = [f"{folder}/{name}".lstrip("/") for folder in folders for name in _folders(split / folder)]
    for folder in folders:
        classes.setdefault(folder.split("/")[levels.index(CLASS)], []).append(folder)
    return {name: classes[name] for name in natural_order(classes)}


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return natural_order(e.name for e in entries if not e.name.startswith(".") and e.is_dir())


CHUNK = 256  # images per task
MANY = 2000  # from this number on, show progress


def decode(
    root: Path, files: list[str], array_file: Path, image_size: int, num_processes: int | None, exactly: bool = False
) -> None:
    """Write images as `array_file`, a .npy of [N, 3, image_size, image_size] uint8.

    With `exactly`, all images must have that size. Raises ConfigError that names a broken image or one of another size,
    and OSError if the disk is full.
    """
    shape = (len(files), 3, image_size, image_size)
    offset = np.lib.format.open_memmap(array_file, mode="w+", dtype=np.uint8, shape=shape).offset
    tasks = [(root, files[i : i + CHUNK], array_file, offset + i * 3 * image_size**2, image_size, exactly)
             for i in range(0, len(files), CHUNK)]  # fmt: skip
    if num_processes is None:
        num_processes = num_cores()
    title = f"Decoding {len(files)} images of {root}"
    with unless_quick(title, len(tasks)) as advance:
        for _ in carried_out(_decode_chunk, tasks, num_processes):
            advance(1)


def _decode_chunk(root: Path, files: list[str], array_file: Path, offset: int, image_size: int, exactly: bool) -> None:
    images = []
    for name in files:
        image = open_image(root / name)
        if exactly and image.size != (image_size, image_size):
            raise ConfigError(
                f"data.path: the image {root / name} has {image.width} x {image.height} pixels, not {image_size} x "
                f"{image_size}: replace it, or use data=imagefolder for your own images."
            )
        images.append(np.asarray(resize_and_crop(image, image_size, image_size)))
    with open(array_file, "r+b") as out:  # writing, unlike a memory map, reports a full disk as an error
        out.seek(offset)
        out.write(np.stack(images).transpose(0, 3, 1, 2).tobytes())


def decoded_tree(tree: Tree, image_size: int, num_processes: int | None = None, exactly: bool = False) -> Path:
    """Return the folder of the four arrays (see `read_arrays`). They are decoded unless no file has changed since.

    The shorter side of an image is resized to `image_size`, then it is center-cropped to a square. With `exactly`, an
    image of another size raises a ConfigError that names it.
    """
    deeper = {name: folders for name, folders in tree.folders[tree.train].items() if folders != [name]}
    words = f"imagefolder-3 {image_size}{' exactly' * exactly} {tree.digest()}{deeper or ''}"

    def build(folder: Path) -> None:
        for split, root in (("train", tree.train), ("test", tree.test)):
            files, labels = tree.files(root)
            np.save(folder / f"{split}_labels.npy", labels)
            if split == "test" and root == tree.train:
                os.link(folder / "train_images.npy", folder / "test_images.npy")
                continue
            decode(root, files, folder / f"{split}_images.npy", image_size, num_processes, exactly)

    return cached(f"imagefolder-{hashlib.sha256(words.encode()).hexdigest()[:16]}", build)


class Normalisation(Enum):
    """Per-channel statistics (red, green, blue), for pixels in 0 ... 255."""

    cifar10 = "cifar10"
    imagenet = "imagenet"

    @property
    def mean(self) -> list[float]:
        """Return the means of the three channels."""
        return [255 * fraction for fraction in _MEAN[self.value]]

    @property
    def std(self) -> list[float]:
        """Return the standard deviations of the three channels."""
        return [255 * fraction for fraction in _STD[self.value]]


_MEAN = {"cifar10": (0.4914, 0.4822, 0.4465), "imagenet": (0.485, 0.456, 0.406)}
_STD = {"cifar10": (0.2023, 0.1994, 0.2010), "imagenet": (0.229, 0.224, 0.225)}


@dataclass
class FoldersOfImages(DivisibleData, AugmentedImages):
    """Images in folders.

    folders    names of the levels of folders in train/ and test/, as in [writer,class] for train/<writer>/<class>/; one
               is the class, and each can be the partition.column
    """

    name: str
    path: str | None = field(default=None, metadata={"content": True})
    test: str | None = setting(None, volatile=True)  # another folder of test images, which count with those of `path`
    folders: list[str] = field(default_factory=lambda: [CLASS], metadata={"older": [CLASS]}, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.folders.count(CLASS) != 1 or len({*self.folders}) < len(self.folders):
            raise ConfigError(
                f"data.folders=[{','.join(self.folders)}] must name each level once, and one of them class, as in "
                "data.folders=[writer,class]."
            )

    def tree(self) -> Tree:
        """Return the folders. Raises ConfigError if there are none."""
        return find_tree(self.path, self.test_share, self.test, self.folders)

    def files_digest(self) -> str:
        """Return the digest of the images; other files in the folder have no effect."""
        return self.tree().digest() if self.path is not None else ""

    def notes(self) -> tuple[str, ...]:
        """Return notes on the images that are left out."""
        return self.tree().notes() if self.path is not None else ()

    def examples(self, column: str | None) -> tuple[list[str], list[str]]:
        """Return the folder of each image at the level `column`, or the paths of the images in train/ and test/."""
        tree = self.tree()
        train, test = (tree.files(split)[0] for split in (tree.train, tree.test))
        if column is None:
            return train, test
        if column not in self.folders:
            raise no_column(self, column, self.folders)
        level = self.folders.index(column)
        return [file.split("/")[level] for file in train], [file.split("/")[level] for file in test]


@dataclass
class ImageFolder(FoldersOfImages):
    """Your own images, in folders `path`/train/<class>/ and `path`/test/<class>/ (or val/), small enough for memory.

    Images are found as by torchvision's `ImageFolder`, including subfolders of a class and links; hidden files are left
    out. Classes are in natural order, 2 before 10 (torchvision sorts names as text); names.json lists them. Without
    test/, `test` is another folder with test images by class, or `test_share` holds out training images; class folders
    may then be in `path`. Images are decoded once, into the cache: the shorter side resized to `image_size`, then
    center-cropped to a square. Training images are padded by `image_size` / 8, cropped and flipped at random
    (`augment`).
    """

    name: str = "imagefolder"
    image_size: int = setting(32, at_least=1)
    augment: Any = field(default=True, metadata={"code": "data.augment"})
    normalisation: Normalisation = Normalisation.cifar10
    num_processes: int | None = setting(None, at_least=1, volatile=True)  # for decoding; null: one per core

    def inspect(self) -> ImageData:
        """Count the files, and return the description."""
        tree = self.tree()
        return ImageData(
            **counts(self.test_share, tree.counts(tree.train), tree.count(tree.test)),
            num_classes=len(tree.classes),
            shape=(3, self.image_size, self.image_size),
            names=tree.classes,
        )

    def prepare(self) -> Path:
        """Decode all images, unless none has been added, removed or changed since the last time."""
        return decoded_tree(self.tree(), self.image_size, self.num_processes)

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import InMemory, read_arrays

        return InMemory(
            read_arrays(self.prepare()),
            num_classes=self.inspect().num_classes,
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            device=device,
            seed=seed,
            pad=self.image_size // 8 if self.crops else 0,
            flip=self.crops,
            transform=self.transform((3, self.image_size, self.image_size), seed),
        )


@dataclass
class ImageNet(FoldersOfImages):
    """ImageNet, or other images too large for memory, in `path`/train/<class>/ and `path`/val/<class>/ (or test/).

    Russakovsky et al., IJCV 2015. Loader processes decode while the models train. Training images: a random crop of
    8-100 % of the area, resized to `image_size`, flipped at random. (`augment=none`: as for tests; module:transform
    gets the whole image, and has to crop it to `image_size`.) Test images: the shorter side resized to `image_size` *
    256 / 224, the central square of `image_size` cut out.
    """

    name: str = "imagenet"
    image_size: int = setting(224, at_least=1)
    single_folder: bool = False  # of earlier runs: class folders directly in path, as test_share takes them, too
    augment: Any = field(default=True, metadata={"code": "data.augment", "older": True})
    # decoding processes for each process of the run (0: decode in the run's own), and how many steps they work ahead
    num_loaders: int = setting(2, at_least=0, volatile=True)
    prefetch_steps: int = setting(1, at_least=1, volatile=True)
    policy: ClassVar[str] = "imagenet"

    def inspect(self) -> ImageData:
        """Count the files, and return the description."""
        if self.single_folder and self.test_share is None:
            raise ConfigError(f"data.single_folder=true has no test images: {NO_TEST}.")
        tree, shape = self.tree(), (3, self.image_size, self.image_size)
        numbers = counts(self.test_share, tree.counts(tree.train), tree.count(tree.test))
        return ImageData(shape=shape, num_classes=len(tree.classes), names=tree.classes, **numbers)

    def nominal(self) -> ImageData | None:
        """Return the description of ILSVRC 2012, unless a path is given."""
        if self.path is not None:
            return None
        shape = (3, self.image_size, self.image_size)
        return ImageData(shape=shape, num_classes=1000, num_train=1_281_167, num_test=50_000)

    def prepare(self) -> None:
        """Check the folders; nothing is prepared. A broken image is named when it is read."""
        self.tree()

    def load(self, device: torch.device | str, seed: int) -> Streamed:
        """See `DataSet`."""
        from decentral.data.loading.streamed import Streamed

        tree = self.tree()
        train = (tree.train, *tree.files(tree.train))
        test = (tree.test, *tree.files(tree.test))
        return Streamed(
            train,
            test,
            num_classes=len(tree.classes),
            image_size=self.image_size,
            normalisation=Normalisation.imagenet,
            num_loaders=self.num_loaders,
            prefetch_steps=self.prefetch_steps,
            device=device,
            seed=seed,
            crops=self.crops,
            transform=self.transform((3, self.image_size, self.image_size), seed),
        )
