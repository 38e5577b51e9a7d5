"""CIFAR-10: the published files, or copies of them as a tree of images, or as arrays in an .npz file."""

from __future__ import annotations

import hashlib
import socket
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from decentral.data.dataset import AugmentedImages, ImageData, cache_folder, cached
from decentral.data.imagefolder import Normalisation, decoded_tree, find_tree
from decentral.errors import ConfigError
from decentral.store.files import at_home

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory

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
    """Return whether `path` contains train/ and test/ (or val/), like an image folder."""
    root = at_home(path)
    return (root / "train").is_dir() and any((root / name).is_dir() for name in _SPLITS[1:])


def is_arrays(path: str) -> bool:
    """Return whether `path` has the name of an .npz file."""
    return path.endswith(".npz")


def check_place(path: str) -> None:
    """Raise ConfigError if `path` visibly is not a folder that has, or could have, CIFAR-10."""
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
            f"data.path={path} has {there[0]}/ but no {lacks}/ with one folder per class: copy the missing folder, or "
            "give the folder that holds cifar-10-batches-py."
        )


def check_tree(path: str) -> str:
    """Return the format of the images, such as 'JPEG'. Raises ConfigError if their numbers are not those of
    CIFAR-10."""
    return _kind(path, find_tree(path).digest())


@lru_cache(maxsize=8)
def _kind(path: str, _digest: str) -> str:
    tree = find_tree(path)
    if different := set(tree.classes) ^ set(CLASSES):
        kind = min(different)
        odd = f"there is no class folder {kind}/" if kind in CLASSES else f"it has a class folder {kind}/"
        raise ConfigError(
            f"data.path={path} is not CIFAR-10, whose classes are {', '.join(CLASSES)}: {odd} ({len(different)} "
            "differences in all); use data=imagefolder for your own images."
        )
    for split, root in (("train", tree.train), ("test", tree.test)):
        if (found := tree.count(root)) != COUNTS[split]:
            raise ConfigError(
                f"data.path={path} is not CIFAR-10: {root.name}/ has {found} images instead of {COUNTS[split]}; use "
                "data=imagefolder for your own images."
            )
    kinds = {Path(file).suffix.lower().lstrip(".").replace("jpeg", "jpg") for file in tree.files(tree.test)[0]}
    return "JPEG" if "jpg" in kinds else " and ".join(sorted(kinds)).upper()


def digest_of_arrays(path: str) -> str:
    """Return a digest of an .npz file's contents, from its checksums. Raises ConfigError for another file."""
    if not at_home(path).is_file():
        raise ConfigError(f"data.path={path} is not a regular file: give an existing .npz file.")
    try:
        with zipfile.ZipFile(at_home(path)) as file:
            members = sorted((one.filename, one.file_size, one.CRC) for one in file.infolist())
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"data.path={path} cannot be read as an .npz file ({error}): give one saved by numpy."
        ) from error
    return hashlib.sha256(repr(members).encode()).hexdigest()[:16]


def from_arrays(path: str) -> Path:
    """Cache the arrays of an .npz file: images [N, 32, 32, 3] or [N, 3, 32, 32] of bytes, labels [N] or [N, 1].

    Their names are train_images, train_labels, test_images, test_labels, or x_train, y_train, x_test, y_test.
    Raises ConfigError if they are not CIFAR-10's, by name, shape and number.
    """

    def build(folder: Path) -> None:
        try:
            with np.load(at_home(path), allow_pickle=False) as file:
                arrays = {name: _chosen(path, file, names) for name, names in _NAMES.items()}
        except ConfigError:
            raise
        except Exception as error:  # numpy and zipfile raise various errors for other files
            raise ConfigError(f"data.path={path} cannot be read: {' '.join(str(error).split())}") from error
        for split, count in COUNTS.items():
            images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"].reshape(-1)
            if images.shape == (count, _SIZE, _SIZE, 3):
                images = images.transpose(0, 3, 1, 2)
            if images.dtype != np.uint8 or images.shape != (count, 3, _SIZE, _SIZE):
                raise ConfigError(
                    f"data.path={path}: {split}_images is {images.dtype} {list(images.shape)}: use uint8 of shape "
                    f"[{count}, 32, 32, 3]."
                )
            if labels.dtype.kind not in "iu" or len(labels) != count or {*np.unique(labels)} != {*range(len(CLASSES))}:
                raise ConfigError(
                    f"data.path={path}: {split}_labels are invalid: give {count} class numbers from 0 to 9, with "
                    "every class present."
                )
            np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images))
            np.save(folder / f"{split}_labels.npy", labels.astype(np.int64))

    return cached(f"cifar10-npz-1-{digest_of_arrays(path)}", build)


def _chosen(path: str, file: Mapping[str, np.ndarray], names: tuple[str, ...]) -> np.ndarray:
    name = next((name for name in names if name in file), None)
    if name is None:
        raise ConfigError(
            f"data.path={path} has no array {' or '.join(names)}: it has {', '.join(sorted(file)) or 'none'}."
        )
    return file[name]


_FOLDER = "cifar-10-batches-py"
_CACHED = "cifar10-1"


@dataclass
class Cifar10(AugmentedImages):
    """CIFAR-10: 60000 color images of 32x32 in ten classes, downloaded to `path` if missing.

    `download=false` never uses the network; `download=true` also replaces damaged or incomplete files. `path` may also
    be a folder of image files, train/<class>/ and test/<class>/, or an .npz file with x_train, y_train, x_test and
    y_test; results on JPEG-compressed images carry a note. Krizhevsky, Learning Multiple Layers of Features from Tiny
    Images, 2009. Training images are padded by 4, cropped and flipped at random (`augment`). Bohl's thesis (2022) used
    `normalisation=imagenet`, perhaps by oversight.
    """

    name: str = "cifar10"
    path: str = field(default="data/cifar10", metadata={"volatile": True})
    download: bool | None = field(default=None, metadata={"volatile": True})
    augment: Any = field(default=True, metadata={"code": "data.augment"})
    normalisation: Normalisation = Normalisation.cifar10

    INFO: ClassVar[ImageData] = ImageData(
        num_train=50000, num_test=10000, num_classes=10, shape=(3, 32, 32), names=CLASSES
    )
    TIMEOUT_S: ClassVar[float] = 30.0

    def inspect(self) -> ImageData:
        """Return constants: missing files are downloaded by `prepare`."""
        if is_tree(self.path):
            check_tree(self.path)
        else:
            check_place(self.path)
        return self.INFO

    def files_digest(self) -> str:
        """Return a digest of unpublished files: names and contents of images, or checksums of arrays."""
        if is_tree(self.path):
            return find_tree(self.path).digest()
        return digest_of_arrays(self.path) if is_arrays(self.path) else ""

    def notes(self) -> tuple[str, ...]:
        """Return the source of the images if they are not the published files."""
        if is_tree(self.path):
            return (f"the data are CIFAR-10 ({check_tree(self.path)})",)
        return ()

    def missing(self) -> str:
        """Describe what would be downloaded: CIFAR-10, unless it is in the cache or in `path`."""
        if is_tree(self.path) or is_arrays(self.path):
            return ""
        here = (cache_folder() / _CACHED, at_home(self.path) / _FOLDER)
        return "" if any(folder.is_dir() for folder in here) else f"CIFAR-10, which is not in data.path={self.path}"

    def prepare(self) -> Path:
        """Download with torchvision, or decode, once: later processes do not import torchvision."""
        if is_tree(self.path):
            check_tree(self.path)
            return decoded_tree(find_tree(self.path), _SIZE, exactly=True)
        if is_arrays(self.path):
            return from_arrays(self.path)
        return cached(_CACHED, self._build)

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import read_arrays

        return self.in_memory(read_arrays(self.prepare()), device, seed)

    def in_memory(self, arrays: dict[str, np.ndarray], device: torch.device | str, seed: int) -> InMemory:
        """Return images and labels, normalized, padded and flipped according to the settings."""
        from decentral.data.loading.in_memory import InMemory

        return InMemory(
            arrays,
            num_classes=self.INFO.num_classes,
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            device=device,
            seed=seed,
            pad=4 if self.crops else 0,
            flip=self.crops,
            transform=self.transform(self.INFO.shape, seed),
        )

    def _build(self, folder: Path) -> None:
        self._check()
        for split in ("train", "test"):
            images, labels = self._download(split)
            np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
            np.save(folder / f"{split}_labels.npy", labels)

    def _check(self) -> None:
        """Raise ConfigError if the folder is the wrong one, or CIFAR-10 is missing and may not be downloaded."""
        path = at_home(self.path)
        if (path / "data_batch_1").is_file():
            raise ConfigError(
                f"data.path={self.path} is the folder of CIFAR-10's files itself: name it {_FOLDER}, and give its "
                f"parent, data.path={path.absolute().parent}."
            )
        if self.download is False and not (path / _FOLDER).is_dir():
            raise ConfigError(
                f"data.download=false, but data.path={self.path} has no {_FOLDER}: set data.path to a folder that "
                "contains it, or leave data.download out to download it."
            )

    def _download(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return images [N, 32, 32, 3] and labels [N]. Existing damaged files are replaced only with download=true."""
        path, timeout_s = at_home(self.path), socket.getdefaulttimeout()
        is_there = (path / _FOLDER).is_dir()
        socket.setdefaulttimeout(self.TIMEOUT_S)  # torchvision sets none and would wait forever
        try:
            from torchvision.datasets import CIFAR10

            download = not is_there if self.download is None else self.download
            data = CIFAR10(str(path), train=split == "train", download=download)
        except (OSError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())
            if is_there and not self.download:
                raise ConfigError(
                    f"data.path={self.path} contains a damaged or incomplete {_FOLDER} ({reason}): copy it again, or "
                    "set data.download=true to download it again."
                ) from error
            raise ConfigError(
                f"CIFAR-10 is not in data.path={self.path} and could not be downloaded ({reason}): run once on a "
                "machine with a network, set data.path to a folder that contains cifar-10-batches-py, or images in "
                "train/<class>/ and test/<class>/, or use data=imagefolder for your own images."
            ) from error
        finally:
            socket.setdefaulttimeout(timeout_s)
        return data.data, np.asarray(data.targets, dtype=np.int64)
