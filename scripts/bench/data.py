"""Whether the data keeps up: images per second of the loaders, next to those of the models."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from bench.baselines import CifarLike
from bench.harness import Effort, Findings, Table, Target, benchmark
from decentral.data.dataset import DataSet, Loaded
from decentral.data.description import ImageData
from decentral.data.imagefolder import ImageNet
from decentral.host.devices import num_cores
from decentral.measurements.timing import in_turn
from decentral.models.resnet import ResNet50
from decentral.models.vgg import VGG11


@benchmark("time to load a batch / time of its forward and backward passes")
def data(effort: Effort) -> Findings:
    """Loading and passes take turns in one process with one thread (CPU time); loader processes work apart (wall)."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root, count, pixels = (Path(folder), 8, (60, 40)) if effort.quick else (Path(folder), 64, (500, 375))
        make_jpegs(root, count, pixels)
        memory = in_memory_row(effort)
        files = files_row(root, effort)
        loaders = loaders_row(root, count, files["passes_per_s"], effort)
    columns = {
        "data": "data",
        "model": "model",
        "batch": "images per batch",
        "data_per_s": "data (images/s)",
        "passes_per_s": "passes (images/s)",
        "share": "share of a step that is data",
    }
    heads = {
        "loaders": "loader processes",
        "images_per_s": "images/s (wall, most)",
        "keeps_up_with": "/ passes on one core",
    }
    notes = [
        f"The files are {count} JPEGs of {pixels[0]} x {pixels[1]} pixels, made up, smooth as photographs are; "
        "each is decoded, cut, resized to the model's size and flipped. The cores that loader processes use "
        "are missing to models on the CPU; next to a GPU they are free."
    ]
    tables = [
        Table("Loading in the run's own process (CPU time)", columns, [memory, files]),
        Table("Files, by loader processes", heads, [loaders]),
    ]
    return Findings(tables, [Target("share of a step that is data, in memory", memory["share"], 0.05)], notes)


def in_memory_row(effort: Effort) -> dict[str, Any]:
    """Color images of 32 x 32, shifted and flipped, for four workers; and VGG-11."""
    count, batch = (100, 2) if effort.quick else (50_000, 32)
    loaded = CifarLike(num_train=count, num_test=10).load("cpu", 0)
    model = VGG11().build(ImageData(shape=(3, 32, 32), num_classes=10))
    rounds = effort.rounds, effort.repeats(5)
    return _row("in memory, 32 x 32, shifted and flipped", "VGG-11", loaded, model, 4, batch, rounds)


def files_row(root: Path, effort: Effort) -> dict[str, Any]:
    """The files, decoded in this process, for one worker; and ResNet-50 on 224 x 224."""
    size, batch = (32, 2) if effort.quick else (224, 4)
    loaded = _files(root, size, loaders=0).load("cpu", 0)
    model = ResNet50().build(ImageData(shape=(3, size, size), num_classes=1000))
    return _row(f"JPEG files, {size} x {size}", "ResNet-50", loaded, model, 1, batch, (effort.at_most(3), 1))


def loaders_row(root: Path, count: int, passes_per_s: float, effort: Effort) -> dict[str, Any]:
    """Loader processes, one per core: every round starts them anew, and waits for the first batches untimed."""
    size, batch, steps = (32, 2, 6) if effort.quick else (224, 8, 30)
    loaders, speeds = num_cores(), []
    loaded = _files(root, size, loaders).load("cpu", 0)
    for _ in range(effort.at_most(3)):
        batches = loaded.train_batches(_order(count, 1, batch), range(1), 0, 2 * loaders + steps)
        for _ in range(2 * loaders):  # so many were on their way before anybody looked
            next(batches)
        began = time.perf_counter()
        for _ in batches:
            pass
        speeds.append(batch * steps / (time.perf_counter() - began))
    loaded.close()
    return {"loaders": loaders, "images_per_s": max(speeds), "keeps_up_with": max(speeds) / passes_per_s}


def _files(root: Path, size: int, loaders: int) -> DataSet:
    return ImageNet(path=str(root), image_size=size, single_folder=True, num_loaders=loaders)


def make_jpegs(root: Path, count: int, pixels: tuple[int, int]) -> None:
    """Pictures in two class folders: coarse noise, enlarged, with some fine noise on it."""
    draws = np.random.default_rng(0)
    for number in range(count):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True)
        coarse = Image.fromarray(draws.integers(256, size=(12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(pixels, Image.Resampling.BICUBIC), dtype=np.int16)
        noisy = np.clip(smooth + draws.integers(-12, 13, size=smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(folder / f"{number}.jpg", quality=90)


def _order(count: int, workers: int, batch: int) -> Callable[[int], Tensor]:
    """order(step) -> images [workers, batch], all over the data set."""
    places = torch.arange(workers * batch).view(workers, batch)
    return lambda step: (places * 7919 + step * 104729) % count


def _row(
    name: str, model: str, loaded: Loaded, module: nn.Module, workers: int, batch: int, rounds: tuple[int, int]
) -> dict[str, Any]:
    """CPU time of a batch and of its passes, by one model after the other."""
    order = _order(len(loaded.train_labels), workers, batch)
    batches = loaded.train_batches(order, range(workers), 0, 2**62)
    images, labels = next(batches)
    parameters = list(module.parameters())

    def passes() -> None:
        with torch.enable_grad():
            for x, y in zip(images, labels, strict=True):
                torch.autograd.grad(F.cross_entropy(module(x), y), parameters)

    times = in_turn({"data": lambda: next(batches), "passes": passes}, *rounds)
    batches.close()
    loaded.close()
    loading, passing, count = times.median("data"), times.median("passes"), workers * batch
    return {
        "data": name,
        "model": model,
        "batch": count,
        "data_per_s": count / loading,
        "passes_per_s": count / passing,
        "share": loading / (loading + passing),
    }
