"""Models of the library transformers, and their low-rank adapters (model.lora=)."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from configure import configure
from decentral.config.identity import run_id
from decentral.errors import ConfigError
from decentral.plugins.lora.adapters.lora import best_factors
from decentral.report.summary import summary
from decentral.store.models import load_models

pytestmark = pytest.mark.skipif(not all(map(find_spec, ("transformers", "peft"))), reason="pip install '.[lora]'")

TEXT = ["task=text", "data=synthetic_text", "data.num_test=40", "num_workers=4", "topology=ring", "algo=dpsgd"]
TEXT += ["steps=4", "batch_size=8", "lr=0.05", "evaluation.every_epochs=100"]
CLASSES = "model=transformers:AutoModelForSequenceClassification"
TINY = ["model.model_type=gpt2", "model.n_layer=1", "model.n_embd=32", "model.n_head=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stored GPT-2 with 2 layers of width 32."""
    import transformers

    path = tmp_path_factory.mktemp("gpt2")
    settings = {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 2000, "bos_token_id": 1, "eos_token_id": 1}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**settings)).save_pretrained(path)
    return path


@pytest.fixture
def words(folder: Path) -> list[str]:
    """A run of adapters of the stored model, without dropout."""
    words = [*TEXT, f"{CLASSES}.from_pretrained", f"model.path={folder}", "model.lora={rank:4,average:product}"]
    return [*words, "precision=fp64", *(f"model.{part}_pdrop=0" for part in ("attn", "embd", "resid"))]


def test_a_stored_model_trains_its_adapters_and_head_and_keeps_its_weights_once(start, folder, words, tmp_path):
    from transformers import AutoModelForCausalLM

    done = start(*words)
    models, given = load_models(done.directory), AutoModelForCausalLM.from_pretrained(folder).state_dict()
    sizes = {name: tensor.numel() for name, tensor in models["worker0"].items()}
    sent = sum(size for name, size in sizes.items() if "lora_" in name or name == "score.weight")
    said = f"Model:    {sent:,} of {sum(sizes.values()):,} parameters are trained; only these are sent"
    assert said in summary(done.directory)
    for name, value in given.items():
        if name != "lm_head.weight":
            each = [model[name.replace("c_attn.", "c_attn.base_layer.")] for model in models.values()]
            assert torch.equal(each[0], value.double()) and len({id(tensor) for tensor in each}) == 1
    apart = [name for name, value in models["worker0"].items() if not torch.equal(value, models["worker1"][name])]
    layers = [f"transformer.h.{h}.attn.c_attn.lora_{side}.default.weight" for h in (0, 1) for side in "AB"]
    assert sorted(apart) == ["score.weight", *layers]
    for A, B in (layers[:2], layers[2:]):
        adapters = [np.stack([models[f"worker{i}"][name].double() for i in range(4)]) for name in (B, A)]
        for name, factor in zip((B, A), numpy_factors(*adapters), strict=True):
            np.testing.assert_allclose(models["averaged"][name], factor, atol=1e-9)
    shutil.copytree(folder, tmp_path / "copied")
    assert run_id(configure(*words)) == run_id(configure(*words, f"model.path={tmp_path / 'copied'}"))


@pytest.mark.slow
def test_adapters_are_the_same_after_an_interruption_and_in_two_processes(start, words):
    done = start(*words)
    assert start(*words, interrupt_at=2, directory="broken").status == "interrupted"
    assert start(*words, directory="broken").rows == done.rows
    one, two = (load_models(run.directory)["averaged"] for run in (done, start(*words, processes=2, directory="two")))
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-9)


def test_models_of_transformers_take_tokens_and_give_logits(start, tmp_path):
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 300)
    language = ["task=language", "data=textfile", f"data.path={tmp_path / 'text.txt'}", "partition=iid", "steps=4"]
    language += ["num_workers=2", "topology=complete", "model=transformers:AutoModelForCausalLM.from_config"]
    with pytest.raises(ConfigError, match=r"of 90: .*; use data\.longest=70 or less"):
        start(*language, *TINY, "model.n_positions=70", "data.longest=90")
    averaged = load_models(start(*language, *TINY, "model.lora.targets=[c_attn,c_proj]").directory)["averaged"]
    assert averaged["transformer.h.0.mlp.c_proj.lora_A.default.weight"].shape == (8, 128)
    every = load_models(start(*TEXT, f"{CLASSES}.from_config", *TINY, directory="all").directory)
    assert not torch.equal(every["worker0"]["transformer.wte.weight"], every["worker1"]["transformer.wte.weight"])


def test_what_does_not_fit_is_refused_by_name(start, monkeypatch):
    for words, message in (
        (["model.model_type=gtp2"], "model.model_type=gtp2 does not exist in .* Did you mean 'gpt2'"),
        ([*TINY, "model.n_layr=2"], "model.n_layr does not exist with model.model_type=gpt2. Did you mean 'n_layer'"),
        ([*TINY, "model.lora.rnk=2"], "model.lora has no key 'rnk'. Did you mean 'rank'"),
        ([*TINY, "model.lora={rank:0}"], r"model.lora.rank=0 is out of range; use a number >= 1"),
        ([*TINY, "model.lora={average:mean}"], "model.lora.average=mean does not exist. .* factors, product"),
        (
            [*TINY, "model.lora={targets:[q_proj]}"],
            r"model.lora.targets=\['q_proj'\]: .*q_proj.* use layers of c_attn, ",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            start(*TEXT, f"{CLASSES}.from_config", *words)
    monkeypatch.setattr("decentral.host.machine.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"model.lora needs the package 'peft': pip install '.\[lora\]'"):
        start(*TEXT, f"{CLASSES}.from_config", *TINY, "model.lora={}")


def test_other_classes_and_other_tokens_than_those_of_the_weights_are_named(start, folder, tmp_path):
    from transformers import GPT2ForSequenceClassification

    model = GPT2ForSequenceClassification.from_pretrained(folder, num_labels=7, pad_token_id=0)
    model.save_pretrained(tmp_path / "seven")
    words = [*TEXT, f"{CLASSES}.from_pretrained", f"model.path={tmp_path / 'seven'}"]
    with pytest.raises(ConfigError, match=r"shapes than 4 classes need: use model\.ignore_mismatched_sizes=true"):
        start(*words)
    words += ["model.ignore_mismatched_sizes=true", "model.lora.rank=2", "model.lora.targets=[c_attn]"]
    notes = json.loads((start(*words).directory / "status.json").read_text())["notes"]
    assert "2 layers (c_attn) with rank 2; score in full: 640 of 122,880 parameters are trained" in str(notes)
    assert "has weights for other tokens" in str(notes) and "tokenizer, data.tokenizer=FILE" in str(notes)
    (tmp_path / "seven" / "tokenizer.json").touch()
    with pytest.raises(ConfigError, match=r"of 2,000 tokens, .* has 2,002: .*data\.tokenizer=.*seven/tokenizer\.json"):
        start(*words, "data.words=2000", directory="more")


# -- averages ----------------------------------------------------------------------------------------------------------


def numpy_factors(B: np.ndarray, A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The formula of `Lora`, with the mean product itself."""
    r = B.shape[2]
    U, S, Vt = np.linalg.svd(np.mean(B @ A, axis=0), full_matrices=False)
    U, S, Vt = U[:, :r], np.where(1e-12 * S.max() < S, S, 0)[:r], Vt[:r]
    signs = np.sign(U[np.abs(U).argmax(axis=0), np.arange(len(S))])
    return U * signs * np.sqrt(S), (np.sqrt(S) * signs)[:, None] * Vt


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
