"""Images in folders: decoded once and kept, or decoded while the models train."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.data import imagefolder
from decentral.data.dataset import opened
from decentral.data.imagefolder import ImageFolder, ImageNet, Normalisation, find_tree
from decentral.data.loading.in_memory import Normalize
from decentral.data.loading.streamed import crop_box
from decentral.errors import ConfigError
from decentral.randomness import seeded
from decentral.store.digests import folder_digest
from waiting import alive, until

# -- Images in folders: imagefolder decodes them once ------------------------------------------------------------------

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


def test_other_sizes_have_their_shorter_side_resized_and_the_center_cut_out(tree):
    root = tree(TWO_CLASSES | {"test/dog/1.png": (16, 40)})
    wide = Image.open(root / "test/dog/1.png").resize((20, 8), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(
        decoded_test_images(ImageFolder(path=str(root), image_size=8))[1], np.asarray(wide)[:, 6:14]
    )


def test_val_is_accepted_and_files_that_are_no_images_are_not_counted(tree):
    root = tree({file.replace("test/", "val/"): size for file, size in TWO_CLASSES.items()})
    (root / "val/dog/notes.txt").write_text("not an image")
    (root / "val/dog/.hidden.png").write_text("not an image")
    (root / "train/readme.md").write_text("not a class")
    data = ImageFolder(path=str(root), image_size=8)
    assert (data.inspect().num_test, data.inspect().num_classes) == (2, 2)
    assert decoded_test_images(data).shape == (2, 8, 8, 3)


def test_images_are_decoded_once_until_one_changes(tree, monkeypatch):
    root = tree(TWO_CLASSES)
    data = ImageFolder(path=str(root), image_size=8)
    decoded = []

    def watched(root: Path, *rest) -> None:
        decoded.append(root.name)
        original(root, *rest)

    original = imagefolder.decode
    monkeypatch.setattr(imagefolder, "decode", watched)
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
    monkeypatch.setattr(imagefolder, "CHUNK", 2)
    np.testing.assert_array_equal(decoded_test_images(ImageFolder(path=str(root), image_size=8, num_processes=2)), one)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_broken_image_is_named(tree, monkeypatch, num_processes):
    root = tree({f"{split}/cat/{i}.jpg": (32, 32) for split in ("train", "test") for i in range(4)})
    broken = root / "train/cat/2.jpg"
    broken.write_bytes(broken.read_bytes()[:300])
    monkeypatch.setattr(imagefolder, "CHUNK", 2)
    with pytest.raises(ConfigError, match=rf"data.path: the image {broken} cannot be decoded"):
        ImageFolder(path=str(root), num_processes=num_processes).prepare()


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


LOOPS = ("..", "../dog|train/dog/loop -> ../cat")


def test_class_folders_are_in_natural_order_and_known_as_before(tree):
    names = ["2", "10", "cat 9", "cat 11"]
    root = tree({f"{split}/{name}/1.png": (8, 8) for split in ("train", "test") for name in sorted(names)})
    data = ImageFolder(path=str(root), image_size=8, augment=False)
    assert list(data.inspect().names) == list(ImageNet(path=str(root)).inspect().names) == names
    assert data.load("cpu", 0).train_labels.tolist() == [0, 1, 2, 3]
    shown = decoded_test_images(data)
    assert all((shown[i] == np.asarray(Image.open(root / f"test/{name}/1.png"))).all() for i, name in enumerate(names))
    as_text = [folder_digest(root / split, [f"{name}/1.png" for name in sorted(names)]) for split in ("train", "test")]
    assert data.files_digest() == "".join(as_text)


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


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "is not a folder"),
        (["other/1.png"], "has no folder train/ and no test/ .*data.test_share=0.2 holds out"),
        (["train/cat/1.png"], r"has no folder test/ \(or val/\).*data.test_share=0.2 holds out"),
        (["train/1.png", "test/1.png"], "there are no class folders in .*train"),
        (["train/cat/1.png", "test/cat/1.png", "test/dog/1.png"], r"differ, for example 'dog' is only in test/ \(1"),
        (["train/cat/1.png", "test/cat/1.txt"], "there are no images in .*test/cat"),
    ],
)
def test_a_malformed_tree_is_refused(tmp_path, files, message):
    for file in files:
        (tmp_path / "tree" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / file).touch()
    with pytest.raises(ConfigError, match=f"data.path.*{message}"):
        ImageFolder(path=str(tmp_path / "tree")).inspect()


def test_the_expected_layout_has_the_levels_of_folders(tmp_path):
    (tmp_path / "train/ann/cat").mkdir(parents=True)
    for path, layout in ((None, "train/<writer>/<class>/ and test"), (str(tmp_path), "test/<writer>/<class>/ .or val")):
        with pytest.raises(ConfigError, match=layout):
            ImageFolder(path=path, folders=["writer", "class"]).inspect()


# -- Images that are decoded while the models train --------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("imagenet")
    draw = np.random.default_rng(0)
    for split, per_class in (("train", 4), ("val", 2)):
        for name in ("n01", "n02", "n03"):
            (root / split / name).mkdir(parents=True)
            for i in range(per_class):
                coarse = Image.fromarray(draw.integers(256, size=(5, 6, 3), dtype=np.uint8))
                coarse.resize((60, 50), Image.Resampling.BICUBIC).save(root / split / name / f"{i}.JPEG")
    return root


def order(step: int) -> torch.Tensor:
    return torch.randint(12, (3, 4), generator=torch.Generator().manual_seed(step))


def imagenet(root: Path, num_loaders: int = 0, **fields) -> ImageNet:
    return ImageNet(path=str(root), image_size=28, num_loaders=num_loaders, **fields)


def test_loader_processes_give_the_same_batches_as_none_and_stop_when_the_iterator_is_closed(root):
    here, there = imagenet(root).load("cpu", seed=0), imagenet(root, num_loaders=2).load("cpu", seed=0)
    expected = list(here.train_batches(order, range(3), 0, 3))
    others = set(multiprocessing.active_children())
    batches = there.train_batches(order, range(3), 0, 100)
    for images, labels in expected:
        got_images, got_labels = next(batches)
        assert torch.equal(got_images, images) and torch.equal(got_labels, labels)
    loaders = set(multiprocessing.active_children()) - others
    batches.close()
    assert len(loaders) == 2
    assert not loaders & set(multiprocessing.active_children())


def test_the_crops_of_a_worker_do_not_depend_on_the_others_or_on_where_one_starts(root):
    data = imagenet(root).load("cpu", seed=0)
    whole = [images for images, _ in data.train_batches(order, range(3), 0, 4)]
    part = [images for images, _ in data.train_batches(lambda step: order(step)[1:], range(1, 3), 2, 4)]
    assert torch.equal(torch.stack(whole[2:])[:, 1:], torch.stack(part))
    other_seed, _ = next(imagenet(root).load("cpu", seed=1).train_batches(order, range(3), 0, 1))
    assert not torch.equal(whole[0], other_seed)
    same, _ = next(data.train_batches(lambda step: torch.zeros(2, 4, dtype=torch.int64), range(2), 0, 1))  # image 0
    assert not torch.equal(same[0], same[1])


def test_a_transform_of_large_images_is_the_same_in_loaders_and_gets_whole_images_if_it_is_ones_own(root):
    def batch(**fields):
        return next(imagenet(root, **fields).load("cpu", seed=0).train_batches(order, range(3), 1, 2))[0]

    cut = f"{__name__}:Cut"
    assert torch.equal(batch(augment=cut), batch(augment=cut, num_loaders=1))
    (plain, _), *_ = imagenet(root / "train", test_share=0.5).load("cpu", seed=0).test_batches(12)
    assert torch.equal(batch(augment="none"), plain[order(1)])
    with seeded(0, "augment", 2, 1):
        cut = Cut()
        files = sorted((root / "train").rglob("*.JPEG"))
        images = [cut(torch.from_numpy(np.array(Image.open(files[i])).transpose(2, 0, 1))) for i in order(1)[2]]
    expected = Normalize(Normalisation.imagenet.mean, Normalisation.imagenet.std, torch.device("cpu"))
    torch.testing.assert_close(batch(augment=f"{__name__}:Cut")[2], expected(torch.stack(images)))


class Cut(v2.RandomCrop):
    def __init__(self):
        super().__init__(28)


def test_test_images_are_resized_cropped_in_the_center_and_normalized(root):
    batches = list(imagenet(root).load("cpu", seed=0).test_batches(4))
    assert [labels.tolist() for _, labels in batches] == [[0, 0, 1, 1], [2, 2]]
    resized = Image.open(root / "val/n02/1.JPEG").resize((38, 32), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized)[2:30, 5:33]
    expected = (pixels - np.array(Normalisation.imagenet.mean)) / Normalisation.imagenet.std
    np.testing.assert_allclose(batches[0][0][3].permute(1, 2, 0), expected, atol=1e-5)


@pytest.mark.parametrize("where", ["train", "only"])
def test_a_share_of_the_images_is_held_out_for_testing(root, where, tmp_path):
    refused = [(root / "train", {}, "or data.test_share=0.2"), (root, {"test_share": 0.2}, "leave out data.test_share")]
    refused.append((root / "train", {"single_folder": True}, "has no test images: data.test_share=0.2"))
    for path, settings, says in refused:
        with pytest.raises(ConfigError, match=says):
            imagenet(path, **settings).inspect()
    shutil.copytree(root / "train", tmp_path / "only" / "train")
    path = root / "train" if where == "train" else tmp_path / "only"
    for data in (imagenet(path, test_share=0.25), ImageFolder(path=str(path), test_share=0.25, augment=False)):
        info, parts = data.inspect(), []
        for seed in (0, 0, 1):
            loaded = opened(data, "cpu", seed)
            (images, labels), *_ = loaded.test_batches(100)
            numbers = torch.arange(len(loaded.train_labels))[None]
            drawn = next(loaded.train_batches(lambda step, rows=numbers: rows, range(1), 0, 1))
            assert (len(loaded.train_labels), loaded.num_test) == (info.num_train, info.num_test) == (9, 3)
            assert labels.tolist() == loaded.test_labels().tolist() == [0, 1, 2]
            assert drawn[1][0].tolist() == loaded.train_labels.tolist()
            parts.append(images)
            if isinstance(data, ImageFolder):
                seen = {image.numpy().tobytes() for image in (*images, *drawn[0][0])}
                assert len(seen) == 12
        assert torch.equal(parts[0], parts[1]) and not torch.equal(parts[0], parts[2])


def test_test_images_may_be_in_another_folder(root, tmp_path):
    shutil.copytree(root / "val", tmp_path / "held_out")
    shutil.copytree(root / "train", tmp_path / "only" / "train")
    for path in (tmp_path / "only", tmp_path / "only" / "train"):
        apart, together = ImageFolder(path=str(path), test=str(tmp_path / "held_out")), ImageFolder(path=str(root))
        assert (apart.files_digest(), apart.inspect()) == (together.files_digest(), together.inspect())
    for settings, says in (({"test": "nowhere"}, "data.test=nowhere is not a folder"),
                           ({"test": str(root / "val"), "test_share": 0.2}, "exclude each other")):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            imagenet(root, **settings).inspect()


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_a_broken_image_is_named_when_it_is_met(tmp_path, num_loaders):
    (tmp_path / "n01").mkdir()
    (tmp_path / "n01" / "bad.JPEG").write_bytes(b"not an image")
    data = imagenet(tmp_path, num_loaders, test_share=0.5)
    data.prepare()
    batches = data.load("cpu", seed=0).train_batches(lambda step: torch.zeros(1, 1, dtype=torch.long), range(1), 0, 1)
    with pytest.raises(ConfigError, match=rf"^data.path: the image {tmp_path}/n01/bad.JPEG cannot be decoded"):
        next(batches)


@pytest.mark.parametrize("size", [(500, 375), (224, 224), (1, 1), (2, 3), (2000, 10), (10, 2000)])
def test_random_crops_lie_in_the_image_and_have_the_area_and_the_shape_asked_for(size):
    width, height = size
    boxes = np.array([crop_box(width, height, np.random.default_rng(i)) for i in range(300)])
    left, top, right, bottom = boxes.T
    assert (left >= 0).all() and (top >= 0).all() and (right <= width).all() and (bottom <= height).all()
    assert (left < right).all() and (top < bottom).all()
    if min(size) > 100:
        area = (right - left) * (bottom - top) / (width * height)
        ratio = (right - left) / (bottom - top)
        assert area.min() == pytest.approx(0.08, abs=0.02) and area.max() > 0.9
        assert ratio.min() == pytest.approx(3 / 4, abs=0.03) and ratio.max() == pytest.approx(4 / 3, abs=0.03)
    if max(size) == 2000:
        assert len(np.unique(boxes, axis=0)) == 1  # no crop fits: the central one


@pytest.mark.slow
def test_loaders_end_with_a_run_that_is_killed(root, tmp_path):
    program = f"""
import multiprocessing, os, signal, torch
from decentral.data.imagefolder import ImageNet

if __name__ == "__main__":
    data = ImageNet(path={str(root)!r}, image_size=28, num_loaders=1).load("cpu", seed=0)
    batches = data.train_batches(lambda step: torch.zeros(1, 4, dtype=torch.long), range(1), 0, 100)
    next(batches)
    with open("loader", "w") as file:
        file.write(str(multiprocessing.active_children()[0].pid))
    os.kill(os.getpid(), signal.SIGKILL)
"""
    (tmp_path / "program.py").write_text(program)
    run = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, check=False)
    assert run.returncode == -signal.SIGKILL
    loader = int((tmp_path / "loader").read_text())
    until(lambda: not alive(loader))


def test_images_that_are_left_out_are_said_to_be(tree):
    root = tree(TWO_CLASSES | {"train/cat/.ipynb_checkpoints/1-checkpoint.png": (8, 8), "test/dog/2.gif": (8, 8)})
    data = ImageFolder(path=str(root))
    assert (data.inspect().num_train, data.inspect().num_test) == (3, 2)
    assert data.notes()[0].startswith("left out of the data: 2 images that are hidden or GIFs, such as ")
    assert ImageFolder(path=str(tree(TWO_CLASSES).parent / "images")).notes() == data.notes()
