"""Data sets that live in memory, the cache of prepared data, and how the training set is dealt out to the workers."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import sleep
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from decentral.config.identity import component_identity
from decentral.data.cifar10 import Cifar10
from decentral.data.dataset import cached
from decentral.data.digits import Digits
from decentral.data.imagefolder import Normalisation
from decentral.data.loading import in_memory
from decentral.data.loading.augmentation import Transform
from decentral.data.loading.in_memory import InMemory
from decentral.errors import ConfigError
from decentral.partition.partition import (
    IID,
    Dirichlet,
    DirichletThesis,
    Natural,
    Partition,
    Shards,
    class_counts,
    dirichlet_shares,
)
from decentral.randomness import seeded
from decentral.registry import components
from decentral.registry.signature import function
from decentral.store import digests

# -- Data sets that live in memory: digits, CIFAR-10, and their batches ------------------------------------------------

SEED = 7


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECENTRAL_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {
        "train_images": draw.integers(1, 256, size=(20, 3, 5, 6), dtype=np.uint8),
        "train_labels": draw.integers(4, size=20),
        "test_images": draw.integers(1, 256, size=(7, 3, 5, 6), dtype=np.uint8),
        "test_labels": draw.integers(4, size=7),
    }


def in_memory_data(arrays: dict[str, np.ndarray], **augmentation) -> InMemory:
    plain = {"mean": [0.0] * 3, "std": [1.0] * 3}
    return InMemory(arrays, num_classes=4, device="cpu", seed=SEED, **(plain | augmentation))


def order(step: int) -> torch.Tensor:
    """16 images of each of the workers 0 ... 3."""
    return torch.randint(20, (4, 16), generator=torch.Generator().manual_seed(step))


def variants(image: np.ndarray, pad: int, flip: bool) -> dict[bytes, int]:
    """Every crop of the zero-padded image, mirrored or not."""
    _, height, width = image.shape
    padded = np.pad(image, ((0, 0), (pad, pad), (pad, pad)))
    crops = [
        padded[:, down : down + height, right : right + width]
        for down in range(2 * pad + 1)
        for right in range(2 * pad + 1)
    ]
    if flip:
        crops += [crop[:, :, ::-1] for crop in crops]
    return {np.ascontiguousarray(crop).tobytes(): i for i, crop in enumerate(crops)}


@pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True)])
def test_an_augmented_image_is_a_crop_of_the_padded_one_and_every_crop_occurs(arrays, pad, flip):
    data = in_memory_data(arrays, pad=pad, flip=flip)
    known = [variants(image, pad, flip) for image in arrays["train_images"]]
    seen = []
    for step, (images, _) in enumerate(data.train_batches(order, range(4), 0, 20)):
        for index, image in zip(order(step).flatten(), images.flatten(0, 1), strict=True):
            seen.append(known[index][image.to(torch.uint8).numpy().tobytes()])
    times = np.bincount(seen, minlength=len(known[0]))
    assert len(times) == (2 * pad + 1) ** 2 * (1 + flip)
    assert times.min() > 0.4 * times.mean()


class Mine(torch.nn.Module):
    """Draws from all three global generators."""

    def forward(self, image):
        return (image + torch.randint(50, ()) + np.random.randint(50) + random.randrange(50)).to(torch.uint8)


def inverted(image):
    return image.neg_().add_(255)


mine, generator = Mine(), np.random.default_rng(0)
NOT_AN_IMAGE = {
    "streamed": (lambda image: image + generator.integers(9), "is not reproducible"),
    "floats": (lambda image: image / 255, r"returns float32 \[3, 5, 6\]: return uint8 \[3, 5, 6\]"),
    "larger": (lambda image: image.repeat(1, 2, 2), r"returns uint8 \[3, 10, 12\]"),
    "arrays": (lambda image: image.numpy(), "returns a ndarray"),
    "broken": (lambda image: image.nothing, "broken fails .*AttributeError"),
}


@pytest.mark.parametrize("name", [f"{__name__}:Mine", f"{__name__}:mine", f"{__name__}:inverted", "autoaugment",
                                  "torchvision.transforms.v2:TrivialAugmentWide"])  # fmt: skip
def test_a_transform_draws_by_seed_worker_and_draw_and_leaves_the_generators_as_they_were(arrays, name):
    data = in_memory_data(arrays, transform=Transform(name, "cifar10", (3, 5, 6), SEED))
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    whole = [images for images, _ in data.train_batches(order, range(4), 0, 4)]
    part = [images for images, _ in data.train_batches(lambda step: order(step)[1:3], range(1, 3), 2, 4)]
    assert torch.equal(torch.stack(whole[2:])[:, 1:3], torch.stack(part))
    after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    plain = {"autoaugment": v2.AutoAugment(v2.AutoAugmentPolicy.CIFAR10), f"{__name__}:inverted": inverted}
    transform = plain.get(name, v2.TrivialAugmentWide() if "torchvision" in name else mine)
    with seeded(SEED, "augment", 3, 2):
        expected = [transform(torch.tensor(arrays["train_images"][i])) for i in order(2)[3]]
    assert torch.equal(whole[2][3], torch.stack(expected).float())
    tested, _ = next(data.test_batches(7))
    assert torch.equal(tested, torch.from_numpy(arrays["test_images"]).float())


@pytest.mark.parametrize("name", NOT_AN_IMAGE)
def test_a_transform_that_cannot_be_right_is_refused_when_data_are_loaded(arrays, name, monkeypatch):
    monkeypatch.setitem(globals(), name, NOT_AN_IMAGE[name][0])
    function.cache_clear()
    with pytest.raises(ConfigError, match=NOT_AN_IMAGE[name][1]):
        in_memory_data(arrays, transform=Transform(f"{__name__}:{name}", "cifar10", (3, 5, 6), SEED))


def test_the_settings_of_augmentation_are_those_of_before():
    ids = [component_identity(Cifar10(augment=value)) for value in (True, "crop_flip", "true", False, "none", "False")]
    assert ids[0] == ids[1] == ids[2] != ids[3] == ids[4] == ids[5]
    assert ids[0]["augment"] is True and ids[3]["augment"] is False
    assert "augment" not in component_identity(Digits())
    with pytest.raises(ConfigError, match=r"data.augment=flip does not exist: use none, crop_flip, autoaugment"):
        Digits(augment="flip")


@pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True)])
def test_what_a_gpu_gathers_is_what_is_copied_on_a_cpu(arrays, monkeypatch, pad, flip):
    data, rows = in_memory_data(arrays, pad=pad, flip=flip), torch.arange(12).view(2, 6)
    copied, _ = data.drawn(rows, [0, 1], [3, 5])
    monkeypatch.setattr(InMemory, "_windows", InMemory._gathered)
    gathered, _ = data.drawn(rows, [0, 1], [3, 5])
    assert torch.equal(copied, gathered)


@pytest.mark.parametrize("small_bytes", [0, 64e6], ids=["kept as bytes", "kept normalized"])
def test_without_augmentation_batches_are_the_normalized_images_and_their_labels(arrays, monkeypatch, small_bytes):
    monkeypatch.setattr(in_memory, "SMALL_BYTES", small_bytes)
    mean, std = np.array([10.0, 20.0, 30.0]), np.array([2.0, 4.0, 8.0])
    data = in_memory_data(arrays, mean=mean, std=std)
    for step, (images, labels) in enumerate(data.train_batches(order, range(4), 0, 3)):
        rows = order(step).numpy()
        expected = (arrays["train_images"][rows] - mean[:, None, None]) / std[:, None, None]
        np.testing.assert_allclose(images.numpy(), expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(labels.numpy(), arrays["train_labels"][rows])
        assert images.dtype == torch.float32 and labels.dtype == torch.int64


def test_test_batches_hold_every_test_image_once_in_order_and_are_not_augmented(arrays):
    data = in_memory_data(arrays, pad=2, flip=True)
    batches = list(data.test_batches(3))
    assert [len(images) for images, _ in batches] == [3, 3, 1]
    np.testing.assert_array_equal(torch.cat([images for images, _ in batches]), arrays["test_images"])
    np.testing.assert_array_equal(torch.cat([labels for _, labels in batches]), arrays["test_labels"])


def test_digits_are_those_of_sklearn_split_by_class_whatever_the_seed_of_the_run():
    from sklearn.datasets import load_digits

    digits = Digits()
    digits.prepare()
    data, other = digits.load("cpu", seed=0), digits.load("cpu", seed=1)
    info = digits.inspect()
    train = torch.arange(info.num_train)[None]
    images, labels = next(data.train_batches(lambda step: train, range(1), 0, 1))
    assert torch.equal(images, next(other.train_batches(lambda step: train, range(1), 0, 1))[0])
    test_images, test_labels = next(data.test_batches(info.num_test + 1))
    assert images.shape[2:] == info.shape and len(test_images) == info.num_test

    pixels = torch.cat([images[0], test_images]) * Digits.STD + Digits.MEAN
    got = np.column_stack([torch.cat([labels[0], test_labels]), pixels.flatten(1).round().int()])
    raw = load_digits()
    expected = np.column_stack([raw.target, raw.data.astype(int)])
    np.testing.assert_array_equal(got[np.lexsort(got.T)], expected[np.lexsort(expected.T)])
    assert abs(pixels.mean() - Digits.MEAN) < 0.05 and abs(pixels.std() - Digits.STD) < 0.05
    share = np.bincount(data.train_labels) / np.bincount(raw.target)
    assert info.num_classes == data.num_classes == len(share)
    np.testing.assert_allclose(share, 0.8, atol=0.004)


def torchvision_with(monkeypatch, download) -> None:
    """A stand-in for torchvision, whose import takes seconds."""
    datasets = ModuleType("torchvision.datasets")
    monkeypatch.setattr(datasets, "CIFAR10", download, raising=False)
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)


def test_cifar10_that_cannot_be_downloaded_is_an_error_that_says_how_to_get_it(monkeypatch, tmp_path):
    def no_network(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path))
    torchvision_with(monkeypatch, no_network)
    with pytest.raises(ConfigError, match=r"data.path=somewhere.*no route to host.*network.*data=imagefolder"):
        Cifar10(path="somewhere").prepare()


@pytest.mark.parametrize(
    ("files", "settings", "said"),
    [
        (["cifar-10-batches-py/data_batch_1"], {}, r"damaged or incomplete cifar-10-batches-py .*data.download=true"),
        (
            ["data_batch_1"],
            {},
            r"folder of CIFAR-10's files itself: name it .* and give its parent, data.path=",
        ),
        ([], {"download": False}, r"data.download=false, but data.path=.* has no cifar-10-batches-py"),
    ],
)
def test_cifar10_that_is_damaged_is_not_said_to_be_missing(monkeypatch, tmp_path, files, settings, said):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"damaged")
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))

    def found(path, train, download):
        assert not download
        raise RuntimeError("Dataset not found or corrupted")

    torchvision_with(monkeypatch, found)
    with pytest.raises(ConfigError, match=said):
        Cifar10(path=str(tmp_path), **settings).prepare()


def test_cifar10_is_downloaded_once_and_turned_into_channels_first(monkeypatch, tmp_path):
    calls = []

    def download(path, train, download):
        calls.append(train)
        draw = np.random.default_rng(int(train))
        return SimpleNamespace(data=draw.integers(256, size=(12, 32, 32, 3), dtype=np.uint8), targets=[3] * 12)

    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path))
    torchvision_with(monkeypatch, download)
    data = Cifar10(augment=False, normalisation=Normalisation.imagenet)
    data.prepare()
    data.prepare()
    assert sorted(calls) == [False, True]
    images, labels = next(data.load("cpu", seed=0).test_batches(12))
    pixels = np.random.default_rng(0).integers(256, size=(12, 32, 32, 3), dtype=np.uint8) / 255
    expected = (pixels - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    np.testing.assert_allclose(images.permute(0, 2, 3, 1), expected, atol=1e-5)
    assert labels.tolist() == [3] * 12


def test_looking_at_components_imports_nothing_slow():
    program = """
import sys
from decentral.registry import components
for package in ("data", "partition", "models", "tasks", "environments", "gradients"):
    assert components(package)
components("data")["digits"]().inspect(), components("data")["cifar10"]().inspect()
slow = {"torch", "torchvision", "sklearn", "PIL", "matplotlib", "pandas", "rich", "filelock"} & set(sys.modules)
assert not slow, slow
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# CIFAR-10 in other files


@pytest.fixture
def small_cifar10(monkeypatch, tmp_path):
    """As if CIFAR-10 had 20 training and 10 test images, and a cache of its own."""
    from decentral.data import cifar10

    monkeypatch.setattr(cifar10, "COUNTS", {"train": 20, "test": 10})
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    labels = {"train": np.arange(20) % 10, "test": np.arange(10)}
    draws = np.random.default_rng(0)
    return {split: (draws.integers(256, size=(len(y), 32, 32, 3), dtype=np.uint8), y) for split, y in labels.items()}


def write_tree(root: Path, data, suffix: str) -> Path:
    from decentral.data.cifar10 import CLASSES

    for split, (images, labels) in data.items():
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            folder = root / split / CLASSES[label]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{number:03d}{suffix}")
    return root


def write_npz(file: Path, data, **changes) -> Path:
    arrays = {f"x_{split}": images for split, (images, _) in data.items()}
    arrays |= {f"y_{split}": labels[:, None].astype(np.uint8) for split, (_, labels) in data.items()}
    np.savez(file, **{name: value for name, value in (arrays | changes).items() if value is not None})
    return file


@pytest.mark.parametrize("kind", ["tree", "npz"])
def test_cifar10_is_read_from_a_folder_of_images_and_from_arrays(kind, small_cifar10, tmp_path):
    path = (
        write_tree(tmp_path / "tree", small_cifar10, ".png")
        if kind == "tree"
        else write_npz(tmp_path / "c.npz", small_cifar10)
    )
    data = Cifar10(path=str(path), augment=False)
    assert data.missing() == "" and data.inspect() == Cifar10.INFO
    arrays = in_memory.read_arrays(data.prepare())
    for split, (images, labels) in small_cifar10.items():
        order = np.argsort(labels, kind="stable") if kind == "tree" else np.arange(len(labels))
        assert np.array_equal(arrays[f"{split}_images"], images[order].transpose(0, 3, 1, 2))
        assert np.array_equal(arrays[f"{split}_labels"], labels[order])


def test_a_run_on_other_files_is_another_run(small_cifar10, tmp_path):
    tree, file = write_tree(tmp_path / "a", small_cifar10, ".png"), write_npz(tmp_path / "c.npz", small_cifar10)
    moved = write_tree(tmp_path / "b", small_cifar10, ".png")
    published = component_identity(Cifar10())
    found = [component_identity(Cifar10(path=str(path))) for path in (tree, file)]
    assert "content" not in published and found[0] != found[1] != published
    assert component_identity(Cifar10(path=str(moved))) == found[0], "wherever they lie"
    (tree / "train" / "cat" / "more.png").write_bytes((tree / "train" / "cat" / "003.png").read_bytes())
    assert component_identity(Cifar10(path=str(tree))) != found[0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x_train": None}, "has no array train_images or x_train: it has x_test, y_test, y_train"),
        (
            {"x_test": np.zeros((10, 32, 32), np.uint8)},
            r"test_images is uint8 \[10, 32, 32\]: use uint8 of shape \[10, 32, 32, 3\]",
        ),
        ({"y_test": np.zeros(10, np.int64)}, "test_labels are invalid: give 10 class numbers from 0 to 9"),
    ],
)
def test_arrays_that_are_not_those_of_cifar10_are_refused(changes, said, small_cifar10, tmp_path):
    with pytest.raises(ConfigError, match=said):
        Cifar10(path=str(write_npz(tmp_path / "c.npz", small_cifar10, **changes))).prepare()


def test_augmentation_is_a_function_of_seed_worker_and_step(arrays):
    """Whatever other workers are here, and wherever one begins."""
    data = in_memory_data(arrays, pad=2, flip=True)
    whole = [images for images, _ in data.train_batches(order, range(4), 0, 6)]
    rest = [images for images, _ in data.train_batches(lambda step: order(step)[2:], range(2, 4), 4, 6)]
    assert all(torch.equal(images[2:], again) for images, again in zip(whole[4:], rest, strict=True))
    one = data.train_batches(lambda step: torch.zeros(2, 16, dtype=torch.int64), range(2), 0, 2)  # image 0 for all
    (first, _), (second, _) = one
    assert not torch.equal(first[0], first[1]) and not torch.equal(first, second)
    data.seed = SEED + 1
    assert not torch.equal(whole[0], next(data.train_batches(order, range(4), 0, 1))[0])


def larger(tree: Path) -> None:
    Image.new("RGB", (64, 48)).save(tree / "train" / "cat" / "003.png")


def doubled(tree: Path) -> None:
    shutil.copy(tree / "train" / "cat" / "003.png", tree / "train" / "cat" / "more.png")


def renamed(tree: Path) -> None:
    for split in ("train", "test"):
        (tree / split / "cat").rename(tree / split / "zebra")


@pytest.mark.parametrize(
    ("change", "inside", "said"),
    [
        (larger, "", r"cat/003\.png has 64 x 48 pixels, not 32 x 32"),
        (doubled, "", "is not CIFAR-10: train/ has 21 images instead of 20; use data=imagefolder"),
        (renamed, "", r"there is no class folder cat/ \(2 differences in all\); use data=imagefolder"),
        (lambda tree: shutil.rmtree(tree / "test"), "", r"has train/ but no test/"),
        (lambda tree: None, "train", r"is the train folder .*: give the folder above it, data\.path="),
        (lambda tree: (tree / "train/cat/loop.png").symlink_to("loop.png"), "", r"loop\.png is not a regular file"),
        (lambda tree: (tree / "file").touch(), "file", "is a file: give the folder that holds"),
        (lambda tree: (tree / "no.npz").touch(), "no.npz", r"data.path=.*no.npz cannot be read as an .npz file"),
        (lambda tree: os.mkfifo(tree / "pipe.npz"), "pipe.npz", r"pipe\.npz is not a regular file"),
    ],
)
def test_trees_and_files_that_are_not_cifar10_are_refused(change: Callable, inside, said, small_cifar10, tmp_path):
    tree = write_tree(tmp_path / "tree", small_cifar10, ".png")
    change(tree)
    data = Cifar10(path=str(tree / inside))
    with pytest.raises(ConfigError, match=said):
        data.inspect()
        data.prepare()


# -- Prepared data is complete or not there at all ---------------------------------------------------------------------


@pytest.fixture(autouse=True)
def private_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_data_is_built_once_however_many_ask_at_the_same_time():
    builds = []

    def build(folder: Path) -> None:
        builds.append(folder)
        (folder / "first").write_text("1")
        sleep(0.05)
        (folder / "last").write_text("2")

    def ask(_: int) -> list[str]:
        return sorted(file.name for file in cached("data", build).iterdir())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, range(8))) == [["first", "last"]] * 8
    assert len(builds) == 1


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ConfigError, MemoryError])
def test_an_interrupted_build_leaves_nothing_and_is_done_again(private_cache, interruption):
    def interrupted(folder: Path) -> None:
        (folder / "first").write_text("1")
        raise interruption

    with pytest.raises(interruption):
        cached("data", interrupted)
    assert not (private_cache / "data").exists()
    assert [file.name for file in cached("data", lambda folder: (folder / "whole").touch()).iterdir()] == ["whole"]


def test_what_a_killed_process_left_is_not_mixed_in(private_cache):
    (private_cache / "data.unfinished").mkdir(parents=True)
    (private_cache / "data.unfinished" / "half").touch()
    assert [file.name for file in cached("data", lambda folder: (folder / "whole").touch()).iterdir()] == ["whole"]


def test_a_cache_that_cannot_be_written_is_an_error_that_says_what_to_set(private_cache):
    private_cache.write_text("a file is in the way")
    with pytest.raises(ConfigError, match="DECENTRAL_CACHE"):
        cached("data", lambda folder: None)


def test_a_digest_is_trusted_while_a_file_is_surely_what_it_was(tmp_path, monkeypatch):
    file, read = tmp_path / "file", []
    monkeypatch.setattr(
        digests, "_digest", lambda path, advance, real=digests._digest: read.append(path) or real(path, advance)
    )
    file.write_bytes(b"one")
    first = [digests.file_digest(file) for _ in range(2)]
    assert len(read) == 2, "it may change again at the same instant"
    monkeypatch.setattr(digests, "_SETTLED_NS", 0)
    assert [digests.file_digest(file) for _ in range(3)] == [first[0]] * 3 and len(read) == 3
    facts = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert digests.file_digest(file) == hashlib.sha256(b"two").hexdigest()[:16] != first[0]
    other = tmp_path / "other"
    other.write_bytes(b"six")
    os.utime(other, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    other.replace(file)
    assert digests.file_digest(file) == hashlib.sha256(b"six").hexdigest()[:16]


# -- How the training set is dealt out to the workers ------------------------------------------------------------------

ALL = [
    IID(),
    Shards(),
    Shards(shards_per_worker=5),
    *(Dirichlet(alpha=alpha, even=even) for alpha in (1e-300, 0.01, 1.0, 100.0) for even in (True, False)),
    *(DirichletThesis(alpha=alpha) for alpha in (1e-4, 1.0)),
]
CIFAR_LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 5000))


def digits_like(num_train: int = 1438, num_classes: int = 10) -> np.ndarray:
    return np.random.default_rng(1).integers(num_classes, size=num_train)


def largest_share(counts: np.ndarray) -> float:
    return float((counts.max(axis=1) / counts.sum(axis=1)).mean())


def test_every_partition_is_listed_here():
    known = {type(partition) for partition in ALL} | {Natural}  # which deals whole labels: see test_text.py
    assert known == set(components("partition").values())


@pytest.mark.parametrize("partition", ALL, ids=str)
def test_every_index_is_dealt_exactly_once(partition: Partition, monkeypatch):
    """To every worker some, by the seed; to most partitions' workers equally many; fewer than one each are refused."""
    monkeypatch.setattr("decentral.partition.partition.MAX_TRIES", 50)
    for num_workers, num_classes in ((1, 10), (7, 1), (16, 10)):
        labels = digits_like(num_classes=num_classes)
        partition.check(len(labels), num_workers)
        dealt, again, other = (partition.indices(labels, num_workers, seed) for seed in (5, 5, 6))
        sizes = [len(rows) for rows in dealt]
        assert len(dealt) == num_workers and min(sizes) > 0 and {rows.dtype for rows in dealt} == {np.dtype(np.int64)}
        np.testing.assert_array_equal(np.sort(np.concatenate(dealt)), np.arange(len(labels)))
        assert all(np.array_equal(a, b) for a, b in zip(dealt, again, strict=True))
        assert num_workers == 1 or not all(np.array_equal(a, b) for a, b in zip(dealt, other, strict=True))
        assert isinstance(partition, Shards) or not getattr(partition, "even", True) or max(sizes) - min(sizes) <= 1
    per_worker = getattr(partition, "shards_per_worker", 1 if getattr(partition, "even", True) else 2)
    assert min(len(rows) for rows in partition.indices(digits_like(12 * per_worker), 12, seed=0)) >= 1
    with pytest.raises(ConfigError, match=r"num_workers=13 .*<= 12"):
        partition.indices(digits_like(12 * per_worker), 13, seed=0)


def test_groups_of_workers_have_classes_of_their_own_alike():
    labels = digits_like(1000)
    counts = class_counts(labels, IID(groups=2).indices(labels, 5, seed=1), 10)
    assert (counts[:3, 5:] == 0).all() and (counts[3:, :5] == 0).all()
    for own in (counts[:3], counts[3:]):
        assert np.ptp(own.sum(1)) <= 1 and (own.sum(0) > 0).sum() == 5
    for partition, workers, key in ((IID(groups=6), 5, "num_workers=5"), (IID(groups=11), 12, "the 10 classes")):
        with pytest.raises(ConfigError, match=rf"partition.groups=\d+ exceeds {key}"):
            partition.check(1000, workers)
            partition.check_labels(10, workers)


def authors_shares(labels: np.ndarray, num_workers: int, alpha: float, random: np.random.RandomState) -> list:
    """The rejection loop one draw at a time, as the specification states it."""
    order = np.arange(len(labels))
    random.shuffle(order)
    shares: list[np.ndarray] = []
    while len(shares) < num_workers:
        n_g = min(10, num_workers - len(shares))
        size = len(order) if len(shares) + n_g == num_workers else int(10 / num_workers * len(labels))
        group, order = order[:size], order[size:]
        held = np.zeros(n_g)
        while True:
            pieces: list[list] = [[] for _ in range(n_g)]
            for c in range(labels.max() + 1):
                rows = group[labels[group] == c]
                held = np.array([sum(map(len, mine)) for mine in pieces])
                p = random.dirichlet(np.repeat(alpha, n_g)) * (held < size / n_g)
                cuts = (np.cumsum(p / p.sum()) * len(rows)).astype(int)[:-1]
                for mine, piece in zip(pieces, np.split(rows, cuts), strict=True):
                    mine.append(piece)
            if min(sum(map(len, mine)) for mine in pieces) >= int(0.5 * size / n_g):
                break
        shares += [np.concatenate(mine) for mine in pieces]
    return shares


@pytest.mark.parametrize(("num_workers", "alpha"), [(3, 0.1), (16, 0.05), (20, 1.0), (16, 10.0)])
def test_the_blockwise_draw_is_the_authors_loop(alpha: float, num_workers: int):
    labels = digits_like(5000)
    ours = dirichlet_shares(labels, num_workers, alpha, np.random.RandomState(2))
    theirs = authors_shares(labels, num_workers, alpha, np.random.RandomState(2))
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("labels", [CIFAR_LABELS, np.sort(CIFAR_LABELS)], ids=["shuffled", "sorted"])
@pytest.mark.parametrize(
    ("alpha", "raw_sizes", "classes_present", "distance"),
    [
        (1.0, [6583, 6110, 5211, 8077, 6433, 6250, 7483, 3853], [9, 10, 10, 7, 9, 7, 9, 10], 0.394),
        (0.1, [6725, 5338, 4286, 3812, 5686, 9080, 8141, 6932], [4, 7, 4, 7, 5, 3, 7, 7], 0.721),
        (0.01, [5001, 6025, 4999, 5112, 4989, 4999, 8875, 10000], [4, 5, 3, 2, 4, 3, 2, 2], 0.782),
    ],
)
def test_the_thesis_partition_has_the_facts_of_cifar10_with_8_workers(
    labels: np.ndarray, alpha: float, raw_sizes: list[int], classes_present: list[int], distance: float
):
    raw = dirichlet_shares(labels, 8, alpha, np.random.RandomState(0))
    assert [len(rows) for rows in raw] == raw_sizes
    counts = class_counts(labels, DirichletThesis(alpha=alpha).indices(labels, 8, seed=0), 10)
    assert (counts > 0).sum(axis=1).tolist() == classes_present
    total_variation = 0.5 * np.abs(counts / 6250 - 0.1).sum(axis=1)
    assert total_variation.mean() == pytest.approx(distance, abs=1e-3)


@pytest.mark.parametrize(("alpha", "num_classes", "share"), [(1.0, 8.0, 0.31), (0.1, 4.3, 0.53), (0.01, 2.2, 0.79)])
def test_the_relaysgd_partition_is_as_heterogeneous_as_theirs(alpha: float, num_classes: float, share: float):
    counts = np.concatenate(
        [class_counts(CIFAR_LABELS, Dirichlet(alpha=alpha).indices(CIFAR_LABELS, 16, s), 10) for s in (1, 2, 3, 4)]
    )
    assert (counts > 0.01 * 3125).sum(axis=1).mean() == pytest.approx(num_classes, rel=0.1)
    assert largest_share(counts) == pytest.approx(share, rel=0.1)


def test_shards_give_each_worker_about_that_many_classes():
    counts = class_counts(CIFAR_LABELS, Shards(shards_per_worker=2).indices(CIFAR_LABELS, 20, seed=0), 10)
    assert (counts.sum(axis=1) == 2500).all()
    assert set((counts > 0).sum(axis=1).tolist()) <= {1, 2}
