"""CIFAR-10."""

from __future__ import annotations

import hashlib
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.data import cifar10_copies as copies
from decentral.data.cache import cache_folder, cached
from decentral.data.dataset import DataSet
from decentral.data.description import ImageData
from decentral.data.folder import find_tree
from decentral.data.normalisation import Normalisation
from decentral.errors import ConfigError
from decentral.store.files import at_home

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory

_FOLDER = "cifar-10-batches-py"
_CACHED = "cifar10-1"
_CHECKSUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
"""MD5 of the published files."""


@dataclass
class Cifar10(DataSet):
    """CIFAR-10: 60000 colour images of 32x32 in ten classes, downloaded to `path` if they are not there.

    `download=false` never asks the network; `download=true` downloads also what is damaged or incomplete. `path` may
    also be a folder of image files, train/<class>/ and test/<class>/, or an .npz file with x_train, y_train, x_test and
    y_test; what is computed on images that went through JPEG files is said to be.
    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Training images are padded by 4, cropped
    and flipped at random (`augment`). `normalisation=imagenet` is what Bohl's thesis (2022) used, by oversight or not.
    """

    name: str = "cifar10"
    path: str = field(default="data/cifar10", metadata={"volatile": True})
    download: bool | None = field(default=None, metadata={"volatile": True})
    augment: bool = True
    normalisation: Normalisation = Normalisation.cifar10

    INFO: ClassVar[ImageData] = ImageData(num_train=50000, num_test=10000, num_classes=10, shape=(3, 32, 32))
    TIMEOUT_S: ClassVar[float] = 30.0

    def inspect(self) -> ImageData:
        """Constants: what is missing is downloaded by `prepare`."""
        if copies.is_tree(self.path):
            copies.check_tree(self.path)
        else:
            copies.check_place(self.path)
        return self.INFO

    def files_digest(self) -> str:
        """A digest of what is not the published files: names and contents of images, or checksums of arrays."""
        if copies.is_tree(self.path):
            return find_tree(self.path).digest()
        return copies.digest_of_arrays(self.path) if copies.is_arrays(self.path) else ""

    def notes(self) -> tuple[str, ...]:
        """Which files the images come from, where they are not the published ones."""
        if copies.is_tree(self.path):
            return (f"the data are CIFAR-10 ({copies.check_tree(self.path)})",)
        return ()

    def missing(self) -> str:
        """CIFAR-10, unless it is in the cache or in `path`."""
        if copies.is_tree(self.path) or copies.is_arrays(self.path):
            return ""
        here = (cache_folder() / _CACHED, at_home(self.path) / _FOLDER)
        return "" if any(folder.is_dir() for folder in here) else f"CIFAR-10, which is not in data.path={self.path}"

    def prepare(self) -> None:
        """Downloads with torchvision, or decodes, once: later processes do not import torchvision."""
        self._prepared()

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import read_arrays

        return self.in_memory(read_arrays(self._prepared()), device, seed)

    def in_memory(self, arrays: dict[str, np.ndarray], device: torch.device | str, seed: int) -> InMemory:
        """Images and labels, normalised, padded and flipped as the settings say."""
        from decentral.data.loading.in_memory import InMemory

        return InMemory(
            arrays,
            num_classes=self.INFO.num_classes,
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            device=device,
            seed=seed,
            pad=4 if self.augment else 0,
            flip=self.augment,
        )

    def _prepared(self) -> Path:
        if copies.is_tree(self.path):
            return copies.from_tree(self.path)
        if copies.is_arrays(self.path):
            return copies.from_arrays(self.path)
        return cached(_CACHED, self._build)

    def _build(self, folder: Path) -> None:
        self._check()
        for split in ("train", "test"):
            images, labels = self._download(split)
            np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
            np.save(folder / f"{split}_labels.npy", labels)

    def _check(self) -> None:
        """Raises ConfigError if what is there is not CIFAR-10, or nothing is and may be downloaded."""
        path = at_home(self.path)
        if (path / "data_batch_1").is_file():
            raise ConfigError(
                f"data.path={self.path} is the folder of CIFAR-10's files itself: give the one that it lies in, "
                f"data.path={path.absolute().parent}, where it has to be called {_FOLDER}."
            )
        if self.download:
            return
        folder = path / _FOLDER
        if not folder.is_dir():
            if self.download is None:
                return
            raise ConfigError(
                f"data.download=false, and there is no {_FOLDER} in data.path={self.path}: set data.path to a folder "
                "that holds it, or leave data.download out where there is a network."
            )
        for name, checksum in _CHECKSUMS.items():
            if damage := _damage(folder / name, checksum):
                raise ConfigError(
                    f"data.path={self.path} holds a damaged CIFAR-10: {_FOLDER}/{name} {damage}; copy it anew, or set "
                    "data.download=true where there is a network, which downloads all of it again."
                )

    def _download(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Images [N, 32, 32, 3] and labels [N]."""
        timeout_s = socket.getdefaulttimeout()
        socket.setdefaulttimeout(self.TIMEOUT_S)  # torchvision sets none, and would wait for ever
        try:
            from torchvision.datasets import CIFAR10

            path, download = str(at_home(self.path)), self.download is not False
            data = CIFAR10(path, train=split == "train", download=download)
        except (OSError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"CIFAR-10 is not in data.path={self.path} and could not be downloaded ({reason}): run once on a "
                "machine with a network, set data.path to a folder that holds cifar-10-batches-py, or images in "
                "train/<class>/ and test/<class>/, or use data=imagefolder for images of your own."
            ) from error
        finally:
            socket.setdefaulttimeout(timeout_s)
        return data.data, np.asarray(data.targets, dtype=np.int64)


def _damage(file: Path, checksum: str) -> str:
    """What is wrong with a file, in words; '' if nothing is."""
    try:
        with open(file, "rb") as opened:
            found = hashlib.file_digest(opened, "md5").hexdigest()
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    size = file.stat().st_size
    return "" if found == checksum else f"({size:,} bytes) has the MD5 checksum {found}, not the published {checksum}"
