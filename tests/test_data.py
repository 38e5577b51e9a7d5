"""Data sets that live in memory: digits, CIFAR-10, and their batches."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import PIL.Image
import pytest
import torch

from decentral.config.identity import component_identity
from decentral.data.cifar10 import Cifar10
from decentral.data.dataset import DataSet
from decentral.data.digits import Digits
from decentral.data.folder import find_tree
from decentral.data.imagefolder import Normalisation
from decentral.data.loading import in_memory
from decentral.data.loading.in_memory import InMemory
from decentral.errors import ConfigError
from decentral.registry import components

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


@pytest.mark.parametrize(("pad", "flip"), [(2, True), (1, False), (0, True)])
def test_what_a_gpu_gathers_is_what_is_copied_on_a_cpu(arrays, monkeypatch, pad, flip):
    data, rows = in_memory_data(arrays, pad=pad, flip=flip), torch.arange(12).view(2, 6)
    copied, _ = data.drawn(rows, [0, 1], [3, 5])
    monkeypatch.setattr(InMemory, "_windows", InMemory._gathered)
    gathered, _ = data.drawn(rows, [0, 1], [3, 5])
    assert torch.equal(copied, gathered)


def test_the_augmentation_of_a_worker_does_not_depend_on_the_others(arrays):
    data = in_memory_data(arrays, pad=2, flip=True)
    together, _ = next(data.train_batches(order, range(4), 5, 6))
    alone, _ = next(data.train_batches(lambda step: order(step)[2:], range(2, 4), 5, 6))
    assert torch.equal(together[2:], alone)
    assert not torch.equal(together[0], together[1])


def test_batches_can_be_resumed_at_any_step(arrays):
    data = in_memory_data(arrays, pad=2, flip=True)
    whole = list(data.train_batches(order, range(4), 0, 6))
    rest = list(data.train_batches(order, range(4), 4, 6))
    for (images, labels), (images_again, labels_again) in zip(whole[4:], rest, strict=True):
        assert torch.equal(images, images_again) and torch.equal(labels, labels_again)


def test_another_seed_augments_differently(arrays):
    first = in_memory_data(arrays, pad=2, flip=True)
    second = in_memory_data(arrays, pad=2, flip=True)
    second.seed = SEED + 1
    (a, _), (b, _) = (next(data.train_batches(order, range(4), 0, 1)) for data in (first, second))
    assert not torch.equal(a, b)


@pytest.mark.parametrize("small_bytes", [0, 64e6], ids=["kept as bytes", "kept normalised"])
def test_without_augmentation_batches_are_the_normalised_images_and_their_labels(arrays, monkeypatch, small_bytes):
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


# --- digits --------------------------------------------------------------------------------------------------------


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


# --- CIFAR-10 ------------------------------------------------------------------------------------------------------


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
        (["cifar-10-batches-py/data_batch_1"], {}, r"data_batch_1 \(7 bytes\) has the MD5 .*data.download=true"),
        (["cifar-10-batches-py/test_batch"], {}, r"cifar-10-batches-py/data_batch_1 is missing"),
        (["data_batch_1"], {}, r"folder of CIFAR-10's files itself: give .*called cifar-10-batches-py"),
        ([], {"download": False}, r"data.download=false.*no cifar-10-batches-py in data.path"),
    ],
)
def test_cifar10_that_is_damaged_is_not_said_to_be_missing(monkeypatch, tmp_path, files, settings, said):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(b"damaged")
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    torchvision_with(monkeypatch, lambda *args, **kwargs: pytest.fail("nothing is to be loaded"))
    with pytest.raises(ConfigError, match=said):
        Cifar10(path=str(tmp_path), **settings).prepare()


def test_a_damaged_cifar10_is_downloaded_again_if_that_is_asked_for(monkeypatch, tmp_path):
    def download(path, train, download):
        assert download
        return SimpleNamespace(data=np.zeros((12, 32, 32, 3), np.uint8), targets=[3] * 12)

    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"damaged")
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))
    torchvision_with(monkeypatch, download)
    Cifar10(path=str(tmp_path), download=True).prepare()


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


# --- all -----------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("cls", components("data").values(), ids=str)
def test_every_data_set_is_a_configuration(cls):
    from omegaconf import OmegaConf

    assert issubclass(cls, DataSet)
    assert OmegaConf.to_object(OmegaConf.structured(cls)) == cls()


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
            PIL.Image.fromarray(image).save(folder / f"{number:03d}{suffix}")
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
    arrays = in_memory.read_arrays(data._prepared())
    for split, (images, labels) in small_cifar10.items():
        order = np.argsort(labels, kind="stable") if kind == "tree" else np.arange(len(labels))
        assert np.array_equal(arrays[f"{split}_images"], images[order].transpose(0, 3, 1, 2))
        assert np.array_equal(arrays[f"{split}_labels"], labels[order])


def test_a_tree_is_looked_through_once_and_again_when_an_image_comes(small_cifar10, tmp_path, monkeypatch):
    looked, scandir = [], os.scandir  # where all names of a class are read
    monkeypatch.setattr(os, "scandir", lambda path: looked.append(Path(path).name) or scandir(path))
    root = write_tree(tmp_path / "tree", small_cifar10, ".png")
    digests, counts = {Cifar10(path=str(root)).files_digest()}, {find_tree(str(root)).count(root / "train")}
    looked.clear()
    for _ in range(10):
        digests.add(Cifar10(path=str(root)).files_digest())
        counts.add(find_tree(str(root)).count(root / "train"))
    assert len(digests) == 1 and counts == {20}
    assert "cat" not in looked
    PIL.Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(root / "train" / "cat" / "new.png")
    assert Cifar10(path=str(root)).files_digest() not in digests
    assert find_tree(str(root)).count(root / "train") == 21


def test_what_went_through_jpeg_files_is_said_to_be(small_cifar10, tmp_path):
    said = {
        suffix: Cifar10(path=str(write_tree(tmp_path / suffix, small_cifar10, suffix))).notes()
        for suffix in (".jpg", ".png")
    }
    assert said == {".jpg": ("the data are CIFAR-10 (JPEG)",), ".png": ("the data are CIFAR-10 (PNG)",)}
    assert Cifar10().notes() == ()


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
            r"test_images is uint8 \[10, 32, 32\], not bytes of \[10, 32, 32, 3\]",
        ),
        ({"y_test": np.zeros(10, np.int64)}, "test_labels are not 10 numbers of classes from 0 to 9"),
    ],
)
def test_arrays_that_are_not_those_of_cifar10_are_refused(changes, said, small_cifar10, tmp_path):
    with pytest.raises(ConfigError, match=said):
        Cifar10(path=str(write_npz(tmp_path / "c.npz", small_cifar10, **changes))).prepare()


def test_a_folder_within_the_tree_and_a_file_are_refused_before_anything_is_downloaded(small_cifar10, tmp_path):
    tree = write_tree(tmp_path / "tree", small_cifar10, ".png")
    with pytest.raises(ConfigError, match=rf"is the train folder .*: give the folder above it, data\.path={tree}"):
        Cifar10(path=str(tree / "train")).inspect()
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file: give the folder that holds"):
        Cifar10(path=str(tmp_path / "file")).inspect()


def test_an_image_of_another_size_is_refused(small_cifar10, tmp_path):
    tree = write_tree(tmp_path / "tree", small_cifar10, ".png")
    file = tree / "train" / "cat" / "003.png"
    with PIL.Image.open(file) as image:
        larger = image.resize((64, 48))
    larger.save(file)
    with pytest.raises(ConfigError, match=r"cat/003\.png has 64 x 48 pixels, not 32 x 32"):
        Cifar10(path=str(tree)).prepare()


@pytest.mark.parametrize(("there", "lacks"), [("train", "test"), ("test", "train")])
def test_half_a_tree_is_refused_before_anything_is_downloaded(there, lacks, small_cifar10, tmp_path):
    tree = write_tree(tmp_path / "tree", small_cifar10, ".png")
    shutil.rmtree(tree / lacks)
    with pytest.raises(ConfigError, match=rf"is half a tree of images: it has {there}/ and no {lacks}/"):
        Cifar10(path=str(tree)).inspect()
    (tmp_path / "other" / there / "of something else").mkdir(parents=True)
    assert Cifar10(path=str(tmp_path / "other")).inspect() == Cifar10.INFO


def test_files_that_are_not_those_of_cifar10_are_refused(small_cifar10, tmp_path):
    tree = write_tree(tmp_path / "tree", small_cifar10, ".png")
    (tree / "train" / "cat" / "more.png").write_bytes((tree / "train" / "cat" / "003.png").read_bytes())
    with pytest.raises(ConfigError, match="is no CIFAR-10: train/ has 21 images, not 20: use data=imagefolder"):
        Cifar10(path=str(tree)).inspect()
    for split in ("train", "test"):
        (tree / split / "cat").rename(tree / split / "zebra")
    with pytest.raises(
        ConfigError, match=r"there is no class folder cat/ \(2 such differences\): use data=imagefolder"
    ):
        Cifar10(path=str(tree)).inspect()
    (tmp_path / "no.npz").write_text("nothing")
    with pytest.raises(ConfigError, match=r"data.path=.*no.npz cannot be read as an .npz file"):
        Cifar10(path=str(tmp_path / "no.npz")).prepare()


def test_files_that_would_never_end_are_refused(small_cifar10, tmp_path):
    os.mkfifo(tmp_path / "pipe.npz")
    with pytest.raises(ConfigError, match=r"pipe\.npz is not a regular file"):
        Cifar10(path=str(tmp_path / "pipe.npz")).prepare()
    tree = write_tree(tmp_path / "tree", small_cifar10, ".png")
    (tree / "train" / "cat" / "loop.png").symlink_to("loop.png")
    with pytest.raises(ConfigError, match=r"loop\.png is not a regular file"):
        Cifar10(path=str(tree)).inspect()
