"""Folders of images: small enough for memory, or ImageNet and anything as large."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from decentral.data.dataset import DataSet
from decentral.data.decode import decoded_tree
from decentral.data.description import ImageData
from decentral.data.folder import find_tree
from decentral.errors import ConfigError
from decentral.settings import setting

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory
    from decentral.data.loading.streamed import Streamed


class Normalisation(Enum):
    """Per-channel statistics (red, green, blue), for pixels in 0 ... 255."""

    cifar10 = "cifar10"
    imagenet = "imagenet"

    @property
    def mean(self) -> list[float]:
        """Means of the three channels."""
        return [255 * fraction for fraction in _MEAN[self.value]]

    @property
    def std(self) -> list[float]:
        """Standard deviations of the three channels."""
        return [255 * fraction for fraction in _STD[self.value]]


_MEAN = {"cifar10": (0.4914, 0.4822, 0.4465), "imagenet": (0.485, 0.456, 0.406)}
_STD = {"cifar10": (0.2023, 0.1994, 0.2010), "imagenet": (0.229, 0.224, 0.225)}


@dataclass
class ImageFolder(DataSet):
    """Your own images, in folders `path`/train/<class>/ and `path`/test/<class>/ (or val/), small enough for memory.

    They are found as torchvision's `ImageFolder` finds them, in folders below that of the class, too, and behind links;
    hidden ones are left out.
    They are decoded once, into the cache: the shorter side resized to `image_size`, then centre-cropped to a square.
    Training images are padded by `image_size` / 8, cropped and flipped at random (`augment`).
    """

    name: str = "imagefolder"
    path: str | None = field(default=None, metadata={"content": True})
    image_size: int = 32
    augment: bool = True
    normalisation: Normalisation = Normalisation.cifar10
    num_processes: int | None = field(default=None, metadata={"volatile": True})  # for decoding; null: one per core

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ConfigError(f"data.image_size={self.image_size} must be at least 1 pixel.")
        if self.num_processes is not None and self.num_processes < 1:
            raise ConfigError(f"data.num_processes={self.num_processes} must be at least 1, or null for one per core.")

    def inspect(self) -> ImageData:
        """Counts the files."""
        tree = find_tree(self.path)
        return ImageData(
            num_train=tree.count(tree.train),
            num_test=tree.count(tree.test),
            num_classes=len(tree.classes),
            shape=(3, self.image_size, self.image_size),
        )

    def files_digest(self) -> str:
        """Of the images: other files beside them make no difference."""
        return find_tree(self.path).digest()

    def notes(self) -> tuple[str, ...]:
        """Which images are left out."""
        return find_tree(self.path).notes()

    def prepare(self) -> None:
        """Decodes all images, unless none was added, removed or changed since the last time."""
        decoded_tree(find_tree(self.path), self.image_size, self.num_processes)

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import InMemory, read_arrays

        tree = find_tree(self.path)
        return InMemory(
            read_arrays(decoded_tree(tree, self.image_size, self.num_processes)),
            num_classes=len(tree.classes),
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            device=device,
            seed=seed,
            pad=self.image_size // 8 if self.augment else 0,
            flip=self.augment,
        )


@dataclass
class ImageNet(DataSet):
    """ImageNet, or other images too large for memory, in `path`/train/<class>/ and `path`/val/<class>/ (or test/).

    Russakovsky et al., IJCV 2015. Loader processes decode while the models train. Training: a random crop of 8-100 % of
    the area, resized to `image_size`, flipped at random; test: the shorter side resized to `image_size` * 256 / 224,
    the central square of `image_size` cut out.
    """

    name: str = "imagenet"
    path: str | None = field(default=None, metadata={"content": True})
    image_size: int = setting(224, at_least=1)
    single_folder: bool = False  # class folders directly in path; the same images for training and testing
    # decoding processes for each process of the run (0: decode in the run's own), and how many steps they work ahead
    num_loaders: int = setting(2, at_least=0, volatile=True)
    prefetch_steps: int = setting(1, at_least=1, volatile=True)

    def inspect(self) -> ImageData:
        """Counts the files."""
        tree = find_tree(self.path, self.single_folder)
        num_train = tree.count(tree.train)
        num_test = num_train if self.single_folder else tree.count(tree.test)
        shape = (3, self.image_size, self.image_size)
        return ImageData(shape=shape, num_classes=len(tree.classes), num_train=num_train, num_test=num_test)

    def files_digest(self) -> str:
        """Of the images: other files beside them make no difference."""
        return find_tree(self.path, self.single_folder).digest() if self.path is not None else ""

    def notes(self) -> tuple[str, ...]:
        """Which images are left out."""
        return find_tree(self.path, self.single_folder).notes() if self.path is not None else ()

    def nominal(self) -> ImageData | None:
        """The images of ILSVRC 2012, unless a path says which ones are meant."""
        if self.path is not None:
            return None
        shape = (3, self.image_size, self.image_size)
        return ImageData(shape=shape, num_classes=1000, num_train=1_281_167, num_test=50_000)

    def prepare(self) -> None:
        """Nothing to prepare but the check of the folders: a broken image is named when it is met."""
        find_tree(self.path, self.single_folder)

    def load(self, device: torch.device | str, seed: int) -> Streamed:
        """See `DataSet`."""
        from decentral.data.loading.streamed import Streamed

        tree = find_tree(self.path, self.single_folder)
        train = (tree.train, *tree.files(tree.train))
        test = train if self.single_folder else (tree.test, *tree.files(tree.test))
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
        )
