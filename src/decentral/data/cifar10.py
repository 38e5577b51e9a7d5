"""CIFAR-10."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from decentral.data.cache import cached
from decentral.data.dataset import DataInfo, DataSet
from decentral.data.normalisation import Normalisation
from decentral.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from decentral.data.loading.in_memory import InMemory


@dataclass
class Cifar10(DataSet):
    """CIFAR-10: 60000 colour pictures of 32x32 in ten classes, downloaded to `path` if they are not there.

    Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. Training pictures are padded by 4, cropped
    and flipped at random (`augment`). `normalisation=imagenet` is what Bohl's thesis (2022) used, by oversight or not.
    """

    name: str = "cifar10"
    path: str = field(default="data/cifar10", metadata={"volatile": True})
    augment: bool = True
    normalisation: Normalisation = Normalisation.cifar10

    INFO: ClassVar[DataInfo] = DataInfo(num_train=50000, num_test=10000, num_classes=10, image_shape=(3, 32, 32))
    TIMEOUT_S: ClassVar[float] = 30.0

    def inspect(self) -> DataInfo:
        """Constants: what is missing is downloaded by `prepare`."""
        return self.INFO

    def prepare(self) -> None:
        """Downloads with torchvision, then keeps bytes in the cache so that no later process imports torchvision."""
        self._prepared()

    def load(self, device: torch.device | str, seed: int) -> InMemory:
        """See `DataSet`."""
        from decentral.data.loading.in_memory import InMemory, read_arrays

        return InMemory(
            read_arrays(self._prepared()),
            num_classes=self.INFO.num_classes,
            mean=self.normalisation.mean,
            std=self.normalisation.std,
            device=device,
            seed=seed,
            pad=4 if self.augment else 0,
            flip=self.augment,
        )

    def _prepared(self) -> Path:
        return cached("cifar10-1", self._build)

    def _build(self, folder: Path) -> None:
        for split in ("train", "test"):
            images, labels = self._download(split)
            np.save(folder / f"{split}_images.npy", np.ascontiguousarray(images.transpose(0, 3, 1, 2)))
            np.save(folder / f"{split}_labels.npy", labels)

    def _download(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Pictures [N, 32, 32, 3] and labels [N]."""
        timeout_s = socket.getdefaulttimeout()
        socket.setdefaulttimeout(self.TIMEOUT_S)  # torchvision sets none, and would wait for ever
        try:
            from torchvision.datasets import CIFAR10

            data = CIFAR10(str(Path(self.path).expanduser()), train=split == "train", download=True)
        except (OSError, RuntimeError, ImportError) as error:
            reason = " ".join(str(error).split())
            raise ConfigError(
                f"CIFAR-10 is not in data.path={self.path} and could not be downloaded ({reason}): run once on a "
                "machine with a network, set data.path to a folder that holds cifar-10-batches-py, or use "
                "data=imagefolder for pictures you have."
            ) from error
        finally:
            socket.setdefaulttimeout(timeout_s)
        return data.data, np.asarray(data.targets, dtype=np.int64)
