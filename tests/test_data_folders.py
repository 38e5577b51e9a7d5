"""Images in folders: imagefolder decodes them once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.data import decode
from decentral.data.folder import find_tree
from decentral.data.imagefolder import ImageFolder, ImageNet
from decentral.errors import ConfigError

Tree = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("DECENTRAL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tree(tmp_path) -> Tree:
    """make(files) writes random images, (height, width) at each path, and returns the root."""

    def make(files: dict[str, tuple[int, int]], mode: str = "RGB") -> Path:
        root = tmp_path / "images"
        for number, (file, size) in enumerate(files.items()):
            pixels = np.random.default_rng(number).integers(256, size=(*size, 3), dtype=np.uint8)
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).convert(mode).save(root / file)
        return root

    return make


TWO_CLASSES = {
    "train/cat/1.png": (8, 8),
    "train/cat/2.PNG": (8, 8),
    "train/dog/1.png": (8, 8),
    "test/cat/1.png": (8, 8),
    "test/dog/1.png": (8, 8),
}


def decoded_test_images(data: ImageFolder) -> np.ndarray:
    """The decoded test images as bytes, [N, H, W, 3]."""
    images, _ = next(data.load("cpu", seed=0).test_batches(1000))
    mean, std = torch.tensor(data.normalisation.mean), torch.tensor(data.normalisation.std)
    return (images.permute(0, 2, 3, 1) * std + mean).round().to(torch.uint8).numpy()


def test_images_of_the_right_size_are_used_as_they_are(tree):
    root = tree(TWO_CLASSES)
    data = ImageFolder(path=str(root), image_size=8)
    info = data.inspect()
    assert (info.num_train, info.num_test, info.num_classes, info.shape) == (3, 2, 2, (3, 8, 8))
    data.prepare()
    loaded = data.load("cpu", seed=0)
    assert loaded.train_labels.tolist() == [0, 0, 1]
    assert [labels.tolist() for _, labels in loaded.test_batches(2)] == [[0, 1]]
    expected = [np.asarray(Image.open(root / file)) for file in ("test/cat/1.png", "test/dog/1.png")]
    np.testing.assert_array_equal(decoded_test_images(data), expected)


def test_other_sizes_have_their_shorter_side_resized_and_the_centre_cut_out(tree):
    root = tree(TWO_CLASSES | {"test/dog/1.png": (16, 40)})
    wide = Image.open(root / "test/dog/1.png").resize((20, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(
        decoded_test_images(ImageFolder(path=str(root), image_size=8))[1], np.asarray(wide)[:, 6:14]
    )


def test_grey_images_become_rgb(tree):
    root = tree(TWO_CLASSES, mode="L")
    grey = np.asarray(Image.open(root / "test/cat/1.png"))
    np.testing.assert_array_equal(
        decoded_test_images(ImageFolder(path=str(root), image_size=8))[0], np.stack([grey] * 3, axis=2)
    )


def test_val_is_accepted_and_files_that_are_no_images_are_not_counted(tree):
    root = tree({file.replace("test/", "val/"): size for file, size in TWO_CLASSES.items()})
    (root / "val/dog/notes.txt").write_text("not an image")
    (root / "val/dog/.hidden.png").write_text("not an image")
    (root / "train/readme.md").write_text("not a class")
    data = ImageFolder(path=str(root), image_size=8)
    assert (data.inspect().num_test, data.inspect().num_classes) == (2, 2)
    assert decoded_test_images(data).shape == (2, 8, 8, 3)


def test_training_images_are_augmented_unless_asked_not_to(tree):
    root = tree(TWO_CLASSES)
    order = torch.tensor([[0, 1, 2] * 8])
    for augment in (True, False):
        data = ImageFolder(path=str(root), image_size=8, augment=augment).load("cpu", seed=0)
        images, _ = next(data.train_batches(lambda step: order, range(1), 0, 1))
        assert (len(images[0].unique(dim=0)) > 3) is augment


def test_images_are_decoded_once_until_one_changes(tree, monkeypatch):
    root = tree(TWO_CLASSES)
    data = ImageFolder(path=str(root), image_size=8)
    decoded = []

    def watched(root: Path, *rest) -> None:
        decoded.append(root.name)
        original(root, *rest)

    original = decode.decode
    monkeypatch.setattr(decode, "decode", watched)
    data.prepare()
    data.prepare()
    assert decoded == ["train", "test"]
    Image.new("RGB", (8, 8), "red").save(root / "test/cat/1.png")
    assert decoded_test_images(data)[0, 0, 0].tolist() == [255, 0, 0]
    ImageFolder(path=str(root), image_size=4).prepare()
    assert decoded == ["train", "test"] * 3


def test_several_processes_decode_the_same_as_one(tree, monkeypatch):
    root = tree({f"{split}/cat/{i}.png": (8, 8) for split in ("train", "test") for i in range(7)})
    one = decoded_test_images(ImageFolder(path=str(root), image_size=8, num_processes=1))
    monkeypatch.setenv("DECENTRAL_CACHE", str(root / "another cache"))
    monkeypatch.setattr(decode, "CHUNK", 2)
    np.testing.assert_array_equal(decoded_test_images(ImageFolder(path=str(root), image_size=8, num_processes=2)), one)


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("damage", [lambda whole: b"not an image", lambda whole: whole[: len(whole) // 2]])
def test_a_broken_image_is_named(tree, monkeypatch, damage, num_processes):
    root = tree({f"{split}/cat/{i}.jpg": (32, 32) for split in ("train", "test") for i in range(4)})
    broken = root / "train/cat/2.jpg"
    broken.write_bytes(damage(broken.read_bytes()))
    monkeypatch.setattr(decode, "CHUNK", 2)
    with pytest.raises(ConfigError, match=rf"data.path: the image {broken} cannot be decoded"):
        ImageFolder(path=str(root), num_processes=num_processes).prepare()


def test_decoding_keeps_to_the_cores_that_are_shared_out(tree, monkeypatch):
    monkeypatch.setattr(decode, "CHUNK", 1)
    monkeypatch.setattr("decentral.host.pool.ProcessPoolExecutor", None)  # one core has no use for it
    monkeypatch.setattr("decentral.host.devices._share_of_cores", 1)
    ImageFolder(path=str(tree(TWO_CLASSES)), image_size=8).prepare()


def test_the_user_is_told_about_a_long_decode(tree, monkeypatch, capsys):
    monkeypatch.setattr(decode, "MANY", 3)
    ImageFolder(path=str(tree(TWO_CLASSES)), image_size=8).prepare()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("Decoding 3 images of") and lines[1].endswith("done.")


def torchvisions(root: Path, split: str) -> list[tuple[str, int]]:
    from torchvision.datasets import ImageFolder as Theirs

    return [(str(Path(file).relative_to(root / split)), label) for file, label in Theirs(str(root / split)).samples]


NESTED = {"train/cat/more/3.png": (8, 8), "train/cat/more/even/4.jpeg": (8, 8), "train/cat/more-/5.bmp": (8, 8),
          "train/cat/a.d/b.png/6.tiff": (8, 8), "train/dog/x/1.webp": (8, 8), "test/dog/y/z/2.ppm": (8, 8)}  # fmt: skip


def test_images_are_found_as_torchvision_finds_them(tree):
    root = tree(TWO_CLASSES | NESTED)
    (root / "train/dog/linked").symlink_to(root / "train/cat/more", target_is_directory=True)
    (root / "train/dog/7.png").symlink_to(root / "test/dog/1.png")
    (root / "train/owl").symlink_to(root / "train/cat", target_is_directory=True)
    (root / "real").mkdir()
    (root / "test").rename(root / "real/test")
    (root / "test").symlink_to("real/test", target_is_directory=True)
    (root / "test/owl").symlink_to("cat", target_is_directory=True)
    found = find_tree(str(root))
    for split in ("train", "test"):
        files, labels = found.files(root / split)
        assert list(zip(files, labels.tolist(), strict=True)) == torchvisions(root, split)
    assert ImageFolder(path=str(root), image_size=8).load("cpu", 0).num_test == len(found.files(root / "test")[0])


LOOPS = (".", "..", "../../..", "loop", "../dog|train/dog/loop -> ../cat")


@pytest.mark.parametrize("loop", [f"train/cat/loop -> {target}" for target in LOOPS])
def test_a_loop_of_links_is_not_followed(tree, loop):
    root = tree(TWO_CLASSES)
    for link in loop.split("|"):
        place, _, target = link.partition(" -> ")
        (root / place).symlink_to(target)
    both = "../dog" in loop  # each class then has the other's images, too
    assert ImageFolder(path=str(root)).inspect().num_train == (6 if both else 3)
    assert run_id(compose(["data=imagefolder", f"data.path={root}", *SMALL]))


SMALL = ("model=mlp", "model.hidden=[4]", "num_workers=2", "batch_size=1", "partition=iid")


def test_a_run_is_known_by_the_content_of_its_images_alone(tree, tmp_path):
    root = tree(TWO_CLASSES | NESTED)
    ids, decoded = [], []

    def look(path: Path = root) -> None:
        config = compose(["data=imagefolder", f"data.path={path}", "data.image_size=8", "data.augment=false", *SMALL])
        ids.append(run_id(config))
        decoded.append(config.data.load("cpu", 0).train_batches(lambda step: torch.arange(8)[None], range(1), 0, 1))
        decoded[-1] = next(decoded[-1])[0].sum().item()

    look()
    shutil.copytree(root, tmp_path / "copy")
    (root / "train/cat/notes.txt").write_text("seen")
    (root / "train/cat/more/7.png").touch()
    (root / "train/cat/more/7.png").unlink()
    look()
    look(tmp_path / "copy")
    assert len(set(ids)) == 1
    for file in ("train/cat/more-/5.bmp", "test/dog/y/z/2.ppm"):
        before = (root / file).stat()
        content = (root / file).read_bytes()
        (root / file).write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
        os.utime(root / file, ns=(before.st_atime_ns, before.st_mtime_ns))
        look()
    assert len(set(ids)) == 3 and decoded[-1] != decoded[0] == decoded[2]
    (root / "train/cat/more/even/8.png").write_bytes((root / "train/cat/1.png").read_bytes())
    look()
    assert len(set(ids)) == 4 and ImageFolder(path=str(root)).inspect().num_train == 9


def test_images_that_are_left_out_are_said_to_be(tree):
    root = tree(TWO_CLASSES | {"train/cat/.ipynb_checkpoints/1-checkpoint.png": (8, 8), "test/dog/2.gif": (8, 8)})
    data = ImageFolder(path=str(root))
    assert (data.inspect().num_train, data.inspect().num_test) == (3, 2)
    assert data.notes()[0].startswith("left out of the data: 2 images that are hidden or GIFs, such as ")
    assert ImageFolder(path=str(tree(TWO_CLASSES).parent / "images")).notes() == data.notes()


@pytest.mark.parametrize("cls", [ImageFolder, ImageNet])
@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "is not a folder"),
        (["other/1.png"], "must hold train/<class>/ and test/<class>/ .*and has neither.*data.single_folder=true"),
        (["1.png"], r"and has neither\.$"),
        (["train/cat/1.png"], r"has no folder test/ \(or val/\)"),
        (["test/cat/1.png"], "has no folder train/"),
        (["train/1.png", "test/1.png"], "there are no class folders in .*train"),
        (
            ["train/cat/1.png", "test/cat/1.png", "test/dog/1.png"],
            r"differ, for example 'dog' is only in test/ \(1 in all\)",
        ),
        (["train/cat/1.txt", "test/cat/1.png"], "there are no images in .*train/cat"),
        (["train/cat/1.png", "test/cat/1.txt"], "there are no images in .*test/cat"),
    ],
)
def test_a_malformed_tree_is_refused(tmp_path, cls, files, message):
    for file in files:
        (tmp_path / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / file).touch()
    with pytest.raises(ConfigError, match=f"data.path.*{message}"):
        cls(path=str(tmp_path / "tree")).inspect()


@pytest.mark.parametrize("cls", [ImageFolder, ImageNet])
def test_the_path_is_required(cls):
    with pytest.raises(ConfigError, match=r"data.path is not set"):
        cls().inspect()


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [(ImageFolder, "image_size", 0), (ImageFolder, "num_processes", 0), (ImageNet, "image_size", 0),
     (ImageNet, "num_loaders", -1), (ImageNet, "prefetch_steps", 0)],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(cls, field, value):
    with pytest.raises(ConfigError, match=f"data.{field}={value}"):
        cls(**{field: value})
