"""Whether the data keeps up: images per second of the loaders, next to those of the models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from decentral.benchmarks.harness.benchmark import Benchmark, Effort, Findings, Table, Target
from decentral.data.description import ImageData
from decentral.jobs.timing.times import Times, in_turn

if TYPE_CHECKING:
    from torch import nn

    from decentral.data.dataset import DataSet, Loaded

_COLUMNS = {
    "data": "data",
    "model": "model",
    "batch": "images per batch",
    "data_per_s": "data (images/s)",
    "passes_per_s": "passes (images/s)",
    "share": "share of a step that is data",
}
_LOADERS = {
    "loaders": "loader processes",
    "images_per_s": "images/s (wall, most)",
    "keeps_up_with": "/ passes on one core",
}
_MOST_ROUNDS = 3  # of what takes seconds


@dataclass
class Data(Benchmark):
    """Loading and passes take turns in one process with one thread (CPU time); loader processes work apart (wall)."""

    name: str = "data"
    title: ClassVar[str] = "time to load a batch / time of its forward and backward passes"

    def measure(self, effort: Effort) -> Findings:
        """Small images in memory, and JPEG files."""
        import torch

        torch.set_num_threads(1)
        with tempfile.TemporaryDirectory() as folder:
            root, count = Path(folder), 8 if effort.quick else 64
            pixels = (60, 40) if effort.quick else (500, 375)
            make_jpegs(root, count, pixels)
            memory = in_memory_row(effort)
            files = files_row(root, effort)
            loaders = loaders_row(root, count, files["passes_per_s"], effort)
        notes = [
            f"The files are {count} JPEGs of {pixels[0]} x {pixels[1]} pixels, made up, smooth as photographs are; "
            "each is decoded, cut, resized to the model's size and flipped. The cores that loader processes use "
            "are missing to models on the CPU; next to a GPU they are free."
        ]
        tables = [
            Table("Loading in the run's own process (CPU time)", _COLUMNS, [memory, files]),
            Table("Files, by loader processes", _LOADERS, [loaders]),
        ]
        return Findings(tables, [Target("share of a step that is data, in memory", memory["share"], 0.05)], notes)


def in_memory_row(effort: Effort) -> dict[str, Any]:
    """Colour images of 32 x 32, shifted and flipped, for four workers; and VGG-11."""
    import numpy as np

    from decentral.data.loading.in_memory import InMemory
    from decentral.models.vgg11 import VGG11

    count, batch = (100, 2) if effort.quick else (50_000, 32)
    draws = np.random.default_rng(0)
    images, labels = draws.integers(256, size=(count, 3, 32, 32), dtype=np.uint8), draws.integers(10, size=count)
    arrays: dict[str, np.ndarray] = {
        "train_images": images,
        "train_labels": labels,
        "test_images": images[:10],
        "test_labels": labels[:10],
    }
    grey = (127.5,) * 3
    data = InMemory(arrays, num_classes=10, mean=grey, std=grey, device="cpu", seed=0, pad=4, flip=True)
    model = VGG11().build(ImageData(shape=(3, 32, 32), num_classes=10))
    times = _take_turns(data, model, 4, batch, effort.rounds, 1 if effort.quick else 5)
    return _row("in memory, 32 x 32, shifted and flipped", "VGG-11", 4 * batch, times)


def files_row(root: Path, effort: Effort) -> dict[str, Any]:
    """The files, decoded in this process, for one worker; and ResNet-50 on 224 x 224."""
    from decentral.models.resnet50 import ResNet50

    size, batch = (32, 2) if effort.quick else (224, 4)
    rounds = min(effort.rounds, _MOST_ROUNDS)
    data = _files(root, size, loaders=0).load("cpu", 0)
    model = ResNet50().build(ImageData(shape=(3, size, size), num_classes=1000))
    times = _take_turns(data, model, 1, batch, rounds, 1)
    return _row(f"JPEG files, {size} x {size}", "ResNet-50", batch, times)


def loaders_row(root: Path, count: int, passes_per_s: float, effort: Effort) -> dict[str, Any]:
    """Loader processes, one per core: every round starts them anew, and waits for the first batches untimed."""
    from decentral.host.devices import num_cores

    size, batch, steps = (32, 2, 6) if effort.quick else (224, 8, 30)
    loaders, speeds = num_cores(), []
    data = _files(root, size, loaders).load("cpu", 0)
    for _ in range(min(effort.rounds, _MOST_ROUNDS)):
        batches = data.train_batches(_order(count, 1, batch), range(1), 0, 2 * loaders + steps)
        for _ in range(2 * loaders):  # so many were on their way before anybody looked
            next(batches)
        began = time.perf_counter()
        for _ in batches:
            pass
        speeds.append(batch * steps / (time.perf_counter() - began))
    data.close()
    return {"loaders": loaders, "images_per_s": max(speeds), "keeps_up_with": max(speeds) / passes_per_s}


def _files(root: Path, size: int, loaders: int) -> DataSet:
    from decentral.data.imagenet import ImageNet

    return ImageNet(path=str(root), image_size=size, single_folder=True, num_loaders=loaders)


def make_jpegs(root: Path, count: int, pixels: tuple[int, int]) -> None:
    """Pictures in two class folders: coarse noise, enlarged, with some fine noise on it."""
    import numpy as np
    from PIL import Image

    draws = np.random.default_rng(0)
    width, height = pixels
    for number in range(count):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        coarse = Image.fromarray(draws.integers(256, size=(12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(smooth + draws.integers(-12, 13, size=smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number}.jpg", quality=90)


def _order(count: int, workers: int, batch: int) -> Callable[[int], Any]:
    """order(step) -> images [workers, batch], all over the data set."""
    import torch

    places = torch.arange(workers * batch).view(workers, batch)
    return lambda step: (places * 7919 + step * 104729) % count


def _take_turns(data: Loaded, module: nn.Module, workers: int, batch: int, rounds: int, repeats: int) -> Times:
    """CPU seconds of a batch (`data`) and of its passes (`passes`), by one model after the other."""
    import torch
    import torch.nn.functional as F

    order = _order(len(data.train_labels), workers, batch)
    batches = data.train_batches(order, range(workers), 0, 2**62)
    images, labels = next(batches)
    parameters = list(module.parameters())

    def passes() -> None:
        with torch.enable_grad():
            for x, y in zip(images, labels, strict=True):
                torch.autograd.grad(F.cross_entropy(module(x), y), parameters)

    times = in_turn({"data": lambda: next(batches), "passes": passes}, rounds, repeats)
    batches.close()
    data.close()
    return times


def _row(data: str, model: str, images: int, times: Times) -> dict[str, Any]:
    loading, passes = times.median("data"), times.median("passes")
    return {
        "data": data,
        "model": model,
        "batch": images,
        "data_per_s": images / loading,
        "passes_per_s": images / passes,
        "share": loading / (loading + passes),
    }
