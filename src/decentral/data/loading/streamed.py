"""A data set that is too large for memory: images are decoded by loader processes while the models train."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from PIL.Image import Resampling, Transpose
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from decentral.data.dataset import Loaded
from decentral.data.decode import open_image, resize_and_crop
from decentral.data.loading.augmentation import TRIED, Transform
from decentral.data.loading.in_memory import Normalize
from decentral.errors import ConfigError
from decentral.host.processes import die_with_parent, start_server
from decentral.randomness import numpy_generator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from PIL.Image import Image

    from decentral.data.dataset import Batches, Order
    from decentral.data.imagefolder import Normalisation


class Piece(NamedTuple):
    """A loader's task: the images of one worker in one step."""

    indices: np.ndarray  # [B]
    worker: int = 0
    step: int = 0


class ImageFiles(Dataset[Tensor | str]):
    """The image files of a split, decoded a piece at a time: [B, 3, S, S] uint8.

    For a broken image, the message is returned instead: an exception would reach the user wrapped in a loader's
    traceback.
    """

    def __init__(
        self,
        root: Path,
        files: list[str],
        image_size: int,
        augment_seed: int | None,
        transform: Transform | None = None,
        whole: bool = False,
    ):
        """Store the settings. `augment_seed` is the seed of random crops (None: central crop). `whole`: `transform`
        gets uncropped images."""
        self.root, self.image_size, self.augment_seed = root, image_size, augment_seed
        self.transform, self.whole = transform, whole
        self.files = np.array([file.encode() for file in files])  # one block of memory to pass to a loader

    def __getitem__(self, piece: Piece) -> Tensor | str:
        try:
            images = self.decoded(piece)
            return torch.stack(images) if self.transform is None else self.transform(images, piece.worker, piece.step)
        except ConfigError as error:
            return str(error)

    def decoded(self, piece: Piece) -> list[Tensor]:
        """Return the images before they are transformed. Raises ConfigError that names a broken image."""
        images = []
        for position, index in enumerate(piece.indices):
            image = self._cropped(open_image(self.root / self.files[index].decode()), piece, position)
            images.append(torch.from_numpy(np.array(image).transpose(2, 0, 1)))
        return images

    def _cropped(self, image: Image, piece: Piece, position: int) -> Image:
        if self.whole:
            return image
        if self.augment_seed is None:
            return resize_and_crop(image, round(self.image_size * 256 / 224), self.image_size)
        draws = numpy_generator(self.augment_seed, "augment", piece.worker, piece.step, position)
        box = crop_box(*image.size, draws)
        image = image.crop(box).resize((self.image_size, self.image_size), Resampling.BILINEAR)
        return image.transpose(Transpose.FLIP_LEFT_RIGHT) if draws.random() < 0.5 else image


def crop_box(width: int, height: int, draws: np.random.Generator) -> tuple[int, int, int, int]:
    """Return (left, top, right, bottom) of a crop with 8-100 % of the area and an aspect ratio between 3/4 and 4/3.

    The area is uniform, the ratio log-uniform, the position uniform (Szegedy et al., CVPR 2015; torchvision's
    `RandomResizedCrop`). After ten crops that do not fit, it is the largest central crop with an allowed ratio.
    """
    for _ in range(10):
        area = width * height * draws.uniform(0.08, 1)
        ratio = math.exp(draws.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(draws.integers(width - w + 1)), int(draws.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


class Streamed(Loaded):
    """Images decoded, cropped and flipped by `num_loaders` processes (0: in this process), normalized on the device.

    The crop of an image is addressed by (seed, worker, step, position), so it depends neither on the number of loaders
    nor on that of processes. About `prefetch_steps` steps are decoded ahead.
    """

    def __init__(
        self,
        train: tuple[Path, list[str], np.ndarray],
        test: tuple[Path, list[str], np.ndarray],
        *,
        num_classes: int,
        image_size: int,
        normalisation: Normalisation,
        num_loaders: int,
        prefetch_steps: int,
        device: torch.device | str,
        seed: int,
        crops: bool = True,
        transform: Transform | None = None,
    ):
        self.device, self.num_classes = torch.device(device), num_classes
        self.num_loaders, self.prefetch_steps = num_loaders, prefetch_steps
        whole = transform is not None and not crops
        self._train = ImageFiles(*train[:2], image_size, seed if crops else None, transform, whole)
        self._test = ImageFiles(*test[:2], image_size, None)
        if transform is not None:
            transform.try_on(self._train.decoded(Piece(np.arange(min(TRIED, len(train[1]))))))
        self.train_labels, self._test_labels = train[2], torch.from_numpy(test[2])
        self.num_test = len(self._test_labels)
        self._labels = torch.from_numpy(self.train_labels)
        self._normalize = Normalize(normalisation.mean, normalisation.std, self.device)

    def train_batches(self, order: Order, workers: Sequence[int], start: int, stop: int) -> Batches:
        """See `Loaded`. Raises ConfigError that names a broken image."""
        ahead: deque[Tensor] = deque()  # requested from the loaders and not yet returned to the caller

        def pieces() -> Iterator[Piece]:
            for step in range(start, stop):
                ahead.append(order(step))
                yield from (Piece(row.numpy(), w, step) for w, row in zip(workers, ahead[-1], strict=True))

        loaded = self._pieces(self._train, pieces(), len(workers))
        try:
            for _ in range(start, stop):
                images = torch.stack([self._normalize(next(loaded)) for _ in workers])
                yield images, self._labels[ahead.popleft()].to(self.device, non_blocking=True)
        finally:
            loaded.close()

    def test_labels(self) -> np.ndarray:
        """See `Loaded`; no image is read."""
        return self._test_labels.numpy()

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loaded`."""
        loaded = self._pieces(self._test, (Piece(batch.numpy()) for batch in batches), 1)
        try:
            for images, batch in zip(loaded, batches, strict=True):
                yield self._normalize(images), self._test_labels[batch].to(self.device, non_blocking=True)
        finally:
            loaded.close()

    def _pieces(
        self, files: ImageFiles, pieces: Iterable[Piece], pieces_per_step: int
    ) -> Generator[Tensor, None, None]:
        """Yield the pieces in order, on the device; closing the generator stops the loaders."""
        context = None
        if self.num_loaders:
            context = torch.multiprocessing.get_context("forkserver")
            context.set_forkserver_preload([__name__])  # torch is imported once, not by every loader every time
            start_server()
        loader = DataLoader(
            files,
            batch_size=None,
            sampler=pieces,
            num_workers=self.num_loaders,
            prefetch_factor=max(2, math.ceil(self.prefetch_steps * pieces_per_step / self.num_loaders))
            if self.num_loaders
            else None,
            multiprocessing_context=context,
            worker_init_fn=_die_with_parent,
            pin_memory=self.device.type == "cuda",
        )
        for piece in loader:  # the loaders stop when this iterator goes
            if isinstance(piece, str):
                raise ConfigError(piece)
            yield piece.to(self.device, non_blocking=True)


def _die_with_parent(_: int) -> None:
    """End this loader when the process that reads from it ends, even if that was killed.

    Torch's own check watches the parent process, which is the fork server.
    """
    die_with_parent()
