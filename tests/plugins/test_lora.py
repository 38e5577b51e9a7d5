"""Models of the library transformers, and their low-rank adapters (model.lora=)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import decentral
from decentral.cli.run import main
from decentral.config.composition import compose
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.plugins.lora.adapters.lora import Lora, best_factors
from decentral.store import RunStore
from decentral.store.models import load_models

transformers = pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.usefixtures("undrawn")

TEXT = ["task=text", "data=synthetic_text", "num_workers=3", "steps=3", "algo=dpsgd", "processes=1", "lr=0.05"]
CLASSES = "model=transformers:AutoModelForSequenceClassification"
TINY = ["model.model_type=gpt2", "model.n_layer=2", "model.n_embd=32", "model.n_head=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored GPT-2 with 2 layers of width 32."""
    path = tmp_path_factory.mktemp("gpt2")
    settings = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 2000, "bos_token_id": 1, "eos_token_id": 1}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).save_pretrained(path)
    return path


def run(*words: str, folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Train, and return the stored models."""
    assert main([*words, f"run_dir={folder}", "progress=false"]) == 0
    return load_models(folder)


def test_a_stored_model_trains_its_adapters_and_keeps_its_weights_once(folder, tmp_path):
    words = [f"{CLASSES}.from_pretrained", f"model.path={folder}", "model.lora={rank:4,average:product}", *TEXT]
    models = run(*words, folder=tmp_path / "run")
    stored = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    for name, value in stored.items():
        same = [model.get(name.replace("c_attn.", "c_attn.base_layer.")) for model in models.values()]
        if name != "lm_head.weight":
            assert all(torch.equal(each, value) for each in same)
            assert len({each.data_ptr() for each in same}) == 1
    apart = [name for name, value in models["worker0"].items() if not torch.equal(value, models["worker1"][name])]
    assert {name.rpartition("c_attn.")[2] for name in apart} == {
        "lora_A.default.weight", "lora_B.default.weight", "score.weight"
    }  # fmt: skip
    assert RunStore.peek(tmp_path / "run")["status"] == "done"


# -- averages ----------------------------------------------------------------------------------------------------------


def numpy_factors(B: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """docs: the averaged adapter of `average: product`."""
    M = np.mean([b @ a for b, a in zip(B, A, strict=True)], axis=0)
    U, S, Vt = np.linalg.svd(M, full_matrices=False)
    r = B.shape[2]
    U, S, Vt = U[:, :r], np.where(S > 1e-12 * S[0], S, 0)[:r], Vt[:r]
    sign = np.sign(U[np.abs(U).argmax(axis=0), np.arange(len(S))])
    return U * sign * np.sqrt(S), (Vt.T * sign * np.sqrt(S)).T


def test_the_averaged_product_is_the_best_of_its_rank():
    rng = np.random.default_rng(0)
    for m, o, r, i in ((5, 12, 3, 9), (2, 7, 4, 30), (3, 2, 4, 6)):
        B, A = rng.normal(size=(m, o, r)), rng.normal(size=(m, r, i))
        found = best_factors(torch.from_numpy(B), torch.from_numpy(A))
        expected = numpy_factors(B, A)
        for one, other in zip(found, expected, strict=True):
            q = min(o, r)
            np.testing.assert_allclose(one.numpy()[:, :q] if one is found[0] else one.numpy()[:q], other, atol=1e-12)
        M = np.mean(B @ A, axis=0)
        left = np.linalg.norm(M - (found[0] @ found[1]).numpy()) ** 2
        assert left == pytest.approx((np.linalg.svd(M)[1][r:] ** 2).sum(), abs=1e-12)
        factors = np.linalg.norm(M - B.mean(0) @ A.mean(0)) ** 2
        assert left < factors
        bias = -np.mean((B - B.mean(0)) @ (A - A.mean(0)), axis=0)
        np.testing.assert_allclose(B.mean(0) @ A.mean(0) - M, bias, atol=1e-12)
    zero = best_factors(torch.zeros(2, 5, 3, dtype=torch.float64), torch.ones(2, 3, 4, dtype=torch.float64))
    assert not zero[0].any() and not zero[1].any()
