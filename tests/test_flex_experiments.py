"""The set-ups of the flexible communication paper: each takes a real step, on images that are made here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from decentral.config.checks import resolve
from decentral.config.composition import compose
from decentral.network.world import World
from decentral.store import RunStore
from worlds import carry_out

STEPPED = {"resnet18": 1, "resnet50": 2, "alexnet": 2}
"""Workers. A step of ViT-L/16 takes 23 GB of memory: it only has to compose."""
MODELS = (*STEPPED, "vit_l_16")


def images(folder: Path, classes: int = 2, each: int = 2) -> str:
    drawn = np.random.default_rng(0)
    for split in ("train", "test"):
        for number in range(classes * each):
            place = folder / split / f"class{number % classes}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawn.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(place / f"{number}.png")
    return f"data.path={folder}"


@pytest.mark.slow
@pytest.mark.parametrize("model", STEPPED)
def test_a_step_of_each_of_the_papers_models(tmp_path: Path, model: str) -> None:
    small = ("num_workers=" + str(STEPPED[model]), "batch_size=1", "steps=1", "cluster.network.segment_epochs=4")
    few = ("compress.candidates=[0.1]", "compress.explore_steps=1", "compress.warmup_epochs=0", "save=none")
    data = ("data=imagefolder", "data.image_size=64", images(tmp_path / "images"))
    run_dir = tmp_path / "run"
    words = [f"experiment=flex_{model}", *data, *small, *few, "device=cpu", "progress=false", f"run_dir={run_dir}"]
    assert carry_out(World(0, 1, torch.device("cpu")), resolve(compose(words)), -1, -1) == "done"
    facts = RunStore.peek(run_dir)
    assert facts is not None and facts["ratios"][0][0] == 0
    assert facts["simulated_s"] >= 2 * 0.16, "a step, and one of exploration"


def test_they_are_what_the_specification_says(tmp_path: Path) -> None:
    data = ("data=imagefolder", images(tmp_path, each=128))
    found = {model: compose([f"experiment=flex_{model}", *data]) for model in MODELS}
    assert {name: config.epochs for name, config in found.items()} == {
        "resnet18": 50, "resnet50": 100, "alexnet": 50, "vit_l_16": 50,
    }  # fmt: skip
    for name, config in found.items():
        assert config.model.name == name and config.num_workers == 8 and config.batch_size == 32 and config.lr == 0.01
        assert config.optim.weight_decay == 1e-4 and config.compress.name == "flexible"
        assert config.cluster.network.segment_epochs == (8 if name == "resnet50" else 4)
