"""Data sets that are stored on the device: images as bytes, one random batch for each worker, texts in tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from decentral.data.dataset import IGNORED, PADDING, ImageData, Loaded, NextTokens
from decentral.randomness import torch_generator, uniform

if TYPE_CHECKING:
    from decentral.data.loading.augmentation import Transform


class Normalize:
    """x -> (x - mean) / std per channel, for uint8 images [..., C, H, W] on `device`."""

    def __init__(self, mean: Sequence[float], std: Sequence[float], device: torch.device):
        deviation = torch.tensor(std, dtype=torch.float32, device=device)[:, None, None]
        self.scale = 1 / deviation
        self.shift = -torch.tensor(mean, dtype=torch.float32, device=device)[:, None, None] / deviation

    def __call__(self, images: Tensor) -> Tensor:
        """Return a new float32 tensor."""
        return images.to(torch.float32).mul_(self.scale).add_(self.shift)


SMALL_BYTES = 64e6  # up to this size, training images that are not augmented are kept as normalized floats


class InMemory(Loaded):
    """Images [N, C, H, W] uint8 and labels on the device; a batch is gathered, augmented and normalized there.

    A training image is shifted by up to `pad` pixels each way (zero padding, as `RandomCrop(padding=pad)` in
    torchvision) and, if `flip`, mirrored with probability 1/2: one of 2 (2 pad + 1)^2 equally likely variants. The
    variant is a hash of (seed, worker, step, position), computed for the whole batch at once, the same on every device.
    Then the image is transformed, if there is a `transform`. `mean` and `std` are per channel, in units of the stored
    bytes. Nothing here waits for the device.
    """

    drawn_apart = True

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        *,
        num_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str,
        seed: int,
        pad: int = 0,
        flip: bool = False,
        transform: Transform | None = None,
    ):
        self.device = torch.device(device)
        self.num_classes, self.seed, self.pad, self.flip = num_classes, seed, pad, flip
        self._transform = transform
        self.train_labels = np.array(arrays["train_labels"], dtype=np.int64)
        self._labels = torch.from_numpy(self.train_labels).to(self.device)
        self._test_labels = torch.from_numpy(np.array(arrays["test_labels"], dtype=np.int64)).to(self.device)
        self.num_test = len(self._test_labels)
        self._images = torch.from_numpy(arrays["train_images"]).to(self.device)
        self._test_images = torch.from_numpy(arrays["test_images"]).to(self.device)
        self._normalize = Normalize(mean, std, self.device)
        height, width = self._images.shape[2:]
        self._row_starts = torch.arange(height, device=self.device) * (width + 2 * pad)
        columns = torch.arange(width, device=self.device)
        self._columns = torch.stack([columns, columns.flip(0)])
        self._augment = pad > 0 or flip
        if transform is not None:
            transform.try_on(self._images)
        elif not self._augment and 4 * self._images.numel() <= SMALL_BYTES:
            self._images = self._normalize(self._images)

    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Loaded`; every batch is a new tensor."""
        assert rows.shape[0] == len(workers)
        flat = self._to_device(rows.reshape(-1))
        images = self._images.index_select(0, flat)
        if self._augment:
            images = self._crop_and_flip(images, workers, steps)
        if self._transform is not None:
            rest = zip(images.cpu().chunk(len(workers)), workers, steps, strict=True)
            images = torch.cat([self._transform(list(some), *address) for some, *address in rest]).to(self.device)
        if images.dtype == torch.uint8:
            images = self._normalize(images)
        labels = self._labels.index_select(0, flat)
        return images.view(*rows.shape, *images.shape[1:]), labels.view(rows.shape)

    def tested(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loaded`."""
        numbers = self._to_device(numbers)
        images = self._normalize(self._test_images.index_select(0, numbers))
        return images, self._test_labels.index_select(0, numbers)

    def _crop_and_flip(self, images: Tensor, workers: Sequence[int], steps: Sequence[int]) -> Tensor:
        """Crop and flip every image to its own variant, [k B, C, H, W] uint8 -> the same shape."""
        shifts = 2 * self.pad + 1
        positions = np.arange(len(images) // len(workers))
        draw = uniform(self.seed, "augment", np.asarray(workers)[:, None], np.asarray(steps)[:, None], positions)
        variants = (draw * (2 * shifts * shifts)).astype(np.int64).reshape(-1)
        padded = F.pad(images, [self.pad] * 4)
        return self._windows(padded, variants) if self.device.type == "cpu" else self._gathered(padded, variants)

    def _windows(self, padded: Tensor, variants: np.ndarray) -> Tensor:
        """Copy each image's window, row by row of its pixels: the fast way on a CPU."""
        shifts = 2 * self.pad + 1
        size = tuple(self._images.shape[2:])
        windows = np.lib.stride_tricks.sliding_window_view(padded.numpy(), size, axis=(2, 3))
        images = windows[np.arange(len(variants)), :, variants % shifts, variants // shifts % shifts]
        if self.flip:
            mirrored = variants >= shifts * shifts
            images[mirrored] = images[mirrored, :, :, ::-1]
        return torch.from_numpy(images)

    def _gathered(self, padded: Tensor, variants: np.ndarray) -> Tensor:
        """Gather all windows from the padded batch at once: the fast way on a GPU."""
        shifts = 2 * self.pad + 1
        variant = self._to_device(torch.from_numpy(variants))
        down = variant % shifts
        right = variant // shifts % shifts
        width = padded.shape[3]
        mirrored = variant // (shifts * shifts) if self.flip else torch.zeros_like(variant)
        columns = self._columns.index_select(0, mirrored) + (down * width + right)[:, None]
        pixels = self._row_starts[:, None] + columns[:, None, :]  # [k B, H, W] places in a padded channel
        pixels = pixels.flatten(1)[:, None, :].expand(-1, padded.shape[1], -1)
        return padded.flatten(2).gather(2, pixels).view(*padded.shape[:2], *self._images.shape[2:])

    def _to_device(self, host: Tensor) -> Tensor:
        """Copy to the device without waiting (from pinned memory, if the device is a GPU)."""
        if self.device.type == "cuda":
            return host.pin_memory().to(self.device, non_blocking=True)
        return host.to(self.device)


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return the four arrays of a prepared data set: train_images, train_labels, test_images, test_labels.

    They are memory-mapped: the processes of a host share the pages ("c" is copy on write, which torch requires).
    """
    names = ("train_images", "train_labels", "test_images", "test_labels")
    return {name: np.load(folder / f"{name}.npy", mmap_mode="c") for name in names}


class FixedBatch(Loaded):
    """One batch of images per worker, standard normal, a function of (seed, worker) only. `train_labels` are for the
    partition."""

    def __init__(self, info: ImageData, train_labels: np.ndarray, *, device: torch.device | str, seed: int) -> None:
        self.device, self.seed, self.info = torch.device(device), seed, info
        self.train_labels, self.num_classes, self.num_test = train_labels, info.num_classes, info.num_test
        self._drawn: dict[tuple[int, ...], tuple[Tensor, Tensor, int]] = {}

    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Loaded`; only the number of rows matters."""
        key = rows.shape[1], *workers
        if key not in self._drawn or self._drawn[key][0]._version != self._drawn[key][2]:  # a model has written into it
            each = [self._draw("training", rows.shape[1], worker) for worker in workers]
            images, labels = torch.stack([x for x, _ in each]), torch.stack([y for _, y in each])
            self._drawn[key] = images, labels, images._version
        return self._drawn[key][:2]

    def test_examples(self, batches: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
        """See `Loaded`."""
        images, labels = self._draw("test", self.num_test, 0)
        return ((images[batch.to(images.device)], labels[batch.to(images.device)]) for batch in batches)

    def _draw(self, split: str, size: int, worker: int) -> tuple[Tensor, Tensor]:
        generator = torch_generator("cpu", self.seed, f"synthetic {split}", worker)
        images = torch.randn(size, *self.info.shape, generator=generator)
        labels = torch.randint(self.num_classes, (size,), generator=generator)
        return images.to(self.device), labels.to(self.device)


Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Concatenated tokens, lengths [N], labels [N]."""


class Padded:
    """Sequences of tokens as rows [N, longest] on the device, padded at the end with `padding`."""

    def __init__(self, tokens: np.ndarray, lengths: np.ndarray, device: torch.device, padding: int = PADDING) -> None:
        rows = np.full((len(lengths), int(lengths.max(initial=1))), padding, dtype=np.int32)
        rows[np.arange(rows.shape[1]) < lengths[:, None]] = tokens
        self.lengths = torch.from_numpy(np.array(lengths, dtype=np.int64))  # on the CPU: nothing waits for the device
        self.rows = torch.from_numpy(rows).to(device)

    def __len__(self) -> int:
        return len(self.lengths)

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return these sequences [b] on the CPU as [b, L] int64 on the device, where L is the length of the longest of
        them."""
        longest = int(self.lengths[numbers].max())
        return self.rows[:, :longest].index_select(0, numbers.to(self.rows.device)).long()


class TextsInMemory(Loaded):
    """Texts with labels; every batch is padded to its longest text."""

    def __init__(self, train: Part, test: Part, num_classes: int, device: torch.device | str) -> None:
        self.device, self.num_classes = torch.device(device), num_classes
        self.train_labels, self.num_test = np.array(train[2]), len(test[2])
        self._train, self._test = (Padded(tokens, lengths, self.device) for tokens, lengths, _ in (train, test))
        self._labels, self._test_labels = (
            torch.from_numpy(np.array(labels)).to(self.device) for _, _, labels in (train, test)
        )

    @classmethod
    def read(cls, folder: Path, num_classes: int, device: torch.device | str) -> TextsInMemory:
        """Read the arrays of a prepared data set."""
        parts = [
            tuple(np.load(folder / f"{split}_{what}.npy") for what in ("tokens", "lengths", "labels"))
            for split in ("train", "test")
        ]
        return cls(parts[0], parts[1], num_classes, device)

    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Loaded`; every batch is a new tensor."""
        flat = rows.reshape(-1)
        labels = self._labels.index_select(0, flat.to(self.device))
        return self._train(flat).view(*rows.shape, -1), labels.view(rows.shape)

    def tested(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loaded`."""
        return self._test(numbers), self._test_labels.index_select(0, numbers.to(self.device))


class Windows(Loaded):
    """Windows of running text: inputs are all tokens but the last, targets all but the first, padded at the end with
    token 0 and with the target `IGNORED`.

    `train_labels` has the source of each window.
    """

    def __init__(self, folder: Path, info: NextTokens, device: torch.device | str) -> None:
        self.device, self.num_classes = torch.device(device), info.num_sources
        train, test = (
            (np.load(folder / f"{split}_tokens.npy"), np.load(folder / f"{split}_lengths.npy"))
            for split in ("train", "test")
        )
        self.train_labels, self.num_test = np.load(folder / "train_labels.npy"), info.num_test
        self._train, self._test = (Padded(*each, self.device, IGNORED) for each in (train, test))
        self.characters = torch.from_numpy(np.append(np.load(folder / "characters.npy"), 0)).to(self.device)
        """Number of characters of each token, and 0 for `IGNORED`, which is the last index: [vocabulary + 1]."""
        counts = np.bincount(train[0], minlength=info.vocabulary) + 1.0
        targets = np.delete(test[0], np.cumsum(test[1]) - test[1])
        self.unigram = float(math.log(counts.sum()) - np.log(counts[targets]).mean())
        """-mean log p over targets of the test windows, p the frequencies in the training windows, each plus one."""

    def drawn(self, rows: Tensor, workers: Sequence[int], steps: Sequence[int]) -> tuple[Tensor, Tensor]:
        """See `Loaded`; inputs and targets [k, B, L]."""
        windows = self._train(rows.reshape(-1)).view(*rows.shape, -1)
        return windows[..., :-1].clamp(min=0), windows[..., 1:]  # a model may write into what it gets

    def tested(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """See `Loaded`; [b, L]."""
        windows = self._test(numbers)
        return windows[:, :-1].clamp(min=0), windows[:, 1:]
