"""ImageNet, or anything as large."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from decentral.data.dataset import DataSet
from decentral.data.description import ImageData
from decentral.data.folder import find_tree
from decentral.data.normalisation import Normalisation
from decentral.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.streamed import Streamed


@dataclass
class ImageNet(DataSet):
    """ImageNet, or other images too large for memory, in `path`/train/<class>/ and `path`/val/<class>/ (or test/).

    Russakovsky et al., IJCV 2015. Loader processes decode while the models train. Training: a random crop of 8-100 % of
    the area, resized to `image_size`, flipped at random; test: the shorter side resized to `image_size` * 256 / 224,
    the central square of `image_size` cut out.
    """

    name: str = "imagenet"
    path: str | None = field(default=None, metadata={"content": True})
    image_size: int = 224
    single_folder: bool = False  # class folders directly in path; the same images for training and testing
    # decoding processes for each process of the run (0: decode in the run's own), and how many steps they work ahead
    num_loaders: int = field(default=2, metadata={"volatile": True})
    prefetch_steps: int = field(default=1, metadata={"volatile": True})

    def __post_init__(self) -> None:
        if self.image_size < 1:
            raise ConfigError(f"data.image_size={self.image_size} must be at least 1 pixel.")
        if self.num_loaders < 0:
            raise ConfigError(
                f"data.num_loaders={self.num_loaders} must be at least 0 (decode without extra processes)."
            )
        if self.prefetch_steps < 1:
            raise ConfigError(f"data.prefetch_steps={self.prefetch_steps} must be at least 1.")

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
