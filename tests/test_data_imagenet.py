"""Images that are decoded while the models train."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from decentral.data.imagefolder import ImageNet, Normalisation
from decentral.data.loading.streamed import crop_box
from decentral.errors import ConfigError
from waiting import alive, until


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


def test_batches_have_the_contract_s_shapes_and_the_labels_of_their_folders(root):
    data = imagenet(root)
    info = data.inspect()
    assert (info.num_train, info.num_test, info.num_classes, info.shape) == (12, 6, 3, (3, 28, 28))
    data.prepare()
    loaded = data.load("cpu", seed=0)
    np.testing.assert_array_equal(loaded.train_labels, np.repeat([0, 1, 2], 4))
    images, labels = next(loaded.train_batches(order, range(3), 0, 1))
    assert images.shape == (3, 4, 3, 28, 28) and images.dtype == torch.float32
    np.testing.assert_array_equal(labels, loaded.train_labels[order(0)])


def test_test_images_are_resized_cropped_in_the_centre_and_normalised(root):
    batches = list(imagenet(root).load("cpu", seed=0).test_batches(4))
    assert [labels.tolist() for _, labels in batches] == [[0, 0, 1, 1], [2, 2]]
    resized = Image.open(root / "val/n02/1.JPEG").resize((38, 32), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized)[2:30, 5:33]
    expected = (pixels - np.array(Normalisation.imagenet.mean)) / Normalisation.imagenet.std
    np.testing.assert_allclose(batches[0][0][3].permute(1, 2, 0), expected, atol=1e-5)


def test_one_folder_serves_both_splits_only_if_asked_to(root):
    with pytest.raises(ConfigError, match=r"data.single_folder=true"):
        imagenet(root / "train").inspect()
    with pytest.raises(ConfigError, match=r"leave out data.single_folder=true"):
        imagenet(root, single_folder=True).inspect()
    data = imagenet(root / "train", single_folder=True)
    assert (data.inspect().num_train, data.inspect().num_test) == (12, 12)
    assert sum(len(labels) for _, labels in data.load("cpu", seed=0).test_batches(5)) == 12


@pytest.mark.parametrize("num_loaders", [0, 1])
def test_a_broken_image_is_named_when_it_is_met(tmp_path, num_loaders):
    (tmp_path / "n01").mkdir()
    (tmp_path / "n01" / "bad.JPEG").write_bytes(b"not an image")
    data = imagenet(tmp_path, num_loaders, single_folder=True)
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
