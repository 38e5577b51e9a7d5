"""Images of your own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decentral.data.dataset import DataSet
from decentral.data.decoded_tree import decoded_tree
from decentral.data.description import ImageData
from decentral.data.folder import find_tree
from decentral.data.normalisation import Normalisation
from decentral.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory


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
