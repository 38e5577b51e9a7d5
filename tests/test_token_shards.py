"""data=tokens: shards of every format, and the rule of the docstring, which another person's numpy code follows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from configure import configure
from decentral.data.token_shards import TokenShards
from decentral.errors import ConfigError
from decentral.host import machine
from decentral.partition.partition import Natural
from decentral.tasks.problems import supervised
from decentral.tasks.problems.supervised import Supervised

END = 300


def stream(size: int, seed: int) -> np.ndarray:
    """Tokens 0 ... 299 in documents of 1 to 60 tokens, each after END; the first token is in the middle of one."""
    random = np.random.default_rng(seed)
    tokens = random.integers(0, END, size).astype(np.uint16)
    starts = np.cumsum(random.integers(1, 60, size))
    tokens[starts[starts < size]] = END
    return tokens


def write(folder: Path, **parts: np.ndarray) -> str:
    """Write each part in three shards, one of each format, cut without regard to documents; 10 comes after 9."""
    folder.mkdir()
    for name, tokens in parts.items():
        first, second, third = np.split(tokens, [len(tokens) // 5, len(tokens) // 2])
        head = np.zeros(256, np.int32)
        head[:3] = 20240520, 1, len(first)
        (folder / f"{name}_8.bin").write_bytes(head.tobytes() + first.tobytes())
        (folder / f"{name}_9.bin").write_bytes(second.tobytes())
        np.save(folder / f"{name}_10.npy", third.astype(np.int32))
    return str(folder)


def recipe(**names: Any) -> dict[str, Any]:
    """The names of the code in the docstring; that of the cut is separate, because it comes first."""
    names["np"] = np
    for line in re.findall(r"^ {8}(\w+ = .*)$", str(TokenShards.__doc__), re.M):
        if ("ninth" in line) == ("cut" in names):
            exec(line, names)
    return names


def drawn(loaded: Any) -> tuple[np.ndarray, np.ndarray]:
    """All windows for training and for testing."""
    rows = torch.arange(len(loaded.train_labels))[None]
    parts = loaded.drawn(rows, range(1), [0]), loaded.tested(torch.arange(loaded.num_test))
    found = [torch.cat([inputs, targets[..., -1:]], -1).flatten(0, -2).numpy() for inputs, targets in parts]
    for inputs, targets in parts:
        assert torch.equal(inputs[..., 1:], targets[..., :-1])
    return found[0], found[1]


def test_sources_and_windows_are_those_of_the_docstring(tmp_path):
    tokens, test = stream(20_000, 0), stream(3_000, 1)
    folders = write(tmp_path / "a", train=tokens, val=test), write(tmp_path / "b", shard=tokens)
    for path, L, S in ((folders[0], 7, 5), (folders[1], 50, 5), (folders[0], 1, 1), (folders[0], 16, 500)):
        data = TokenShards(path=path, end_of_text=END, longest=L, sections=S, test_tokens=2000)
        part, held = tokens, test[:2000]
        if path == folders[1]:
            cut = recipe(tokens=tokens, end_of_text=END, cut=None)["cut"]
            part, held = tokens[:cut], tokens[cut : cut + 2000]
            assert tokens[cut] == END
        rule = recipe(tokens=part, end_of_text=END, S=S, L=L)
        loaded, info = data.load("cpu", 0), data.inspect()
        train, tested = drawn(loaded)
        assert loaded.train_labels.tolist() == rule["source"].tolist()
        assert np.array_equal(train, part[rule["start"][:, None] + np.arange(L + 1)])
        assert np.array_equal(tested, np.lib.stride_tricks.sliding_window_view(held, L + 1)[::L])
        counts = len(rule["start"]), len(tested), len(set(rule["source"]))
        assert (info.num_train, info.num_test, info.num_sources) == counts


def test_llama_3_tokens_are_uint32_and_characters_have_no_documents(tmp_path):
    tokens, head = stream(3000, 5).astype(np.int64), np.zeros(256, np.int32)
    head[:3] = 20240801, 7, len(tokens)
    tokens[7] = 128_000
    (tmp_path / "a").mkdir()
    (tmp_path / "a/train.bin").write_bytes(head.tobytes() + tokens.astype(np.uint32).tobytes())
    for end_of_text in (END, 999):
        data = TokenShards(path=str(tmp_path / "a"), vocabulary=200_000, end_of_text=end_of_text, longest=9, sections=4)
        cut = recipe(tokens=tokens, end_of_text=end_of_text, cut=None)["cut"]
        rule = recipe(tokens=tokens[:cut], end_of_text=end_of_text, S=4, L=9)
        train, tested = drawn(data.load("cpu", 0))
        assert np.array_equal(train, tokens[rule["start"][:, None] + np.arange(10)]) and tokens[7] in train
        assert np.array_equal(tested, np.lib.stride_tricks.sliding_window_view(tokens[cut:], 10)[::9])
        assert data.inspect().num_sources == 4 and bool(data.notes()) == (end_of_text == 999)
    assert cut == 2700


def test_workers_get_disjoint_documents(tmp_path):
    tokens = stream(20_000, 2)
    data = TokenShards(path=write(tmp_path / "a", train=tokens, val=tokens), end_of_text=END, longest=8, sections=12)
    rule = recipe(tokens=tokens, end_of_text=END, S=12, L=8)
    parts = Natural().indices(data.load("cpu", 0).train_labels, 4, seed=0)
    document = np.cumsum(tokens == END)
    held = [{int(d) for w in part for d in document[rule["start"][w] :][:9]} for part in parts]
    assert sum(map(len, held)) == len(set.union(*held))
    assert min(map(len, parts)) > 0.8 * max(map(len, parts))


def test_a_token_zero_counts_in_the_loss_and_perplexity_is_reported(tmp_path):
    path = write(tmp_path / "a", train=stream(4000, 3), val=stream(600, 4))
    config = configure(
        *("task=language", "data=tokens", f"data.path={path}", f"data.end_of_text={END}", "data.longest=16"),
        *("data.vocabulary=301", "data.sections=3", "num_workers=3", "model=char_lstm", "model.hidden=8"),
        *("algo=dpsgd", "topology=ring", "batch_size=4", "precision=fp64", "device=cpu"),
    )
    problem = config.task.open(config, range(3), torch.device("cpu"))
    assert [metric.name for metric in problem.usual_metrics] == ["loss", "perplexity"]
    outputs, targets = torch.randn(2, 16, 301), torch.zeros(2, 16, dtype=torch.long)
    total = torch.zeros(3)
    problem.add_statistics(total, outputs, targets)
    loss, perplexity = problem.usual_values(total)
    assert loss == pytest.approx(float(-outputs.log_softmax(-1)[..., 0].mean()), rel=1e-6)
    assert perplexity == pytest.approx(float(loss.exp()))
    assert float(problem.loss(outputs, targets)) == pytest.approx(float(loss))


def test_a_gradient_that_exceeds_the_memory_is_refused_and_the_suggested_batch_size_works(tmp_path, monkeypatch):
    path = write(tmp_path / "a", train=stream(20_000, 3), val=stream(2000, 4))
    settings = (
        *("task=language", "data=tokens", f"data.path={path}", f"data.end_of_text={END}", "data.longest=32"),
        *("data.vocabulary=2000", "data.sections=3", "num_workers=2", "model=gpt", "model.dim=16", "model.layers=1"),
        *("batch_size=8", "precision=fp64", "device=cpu"),
    )

    def opened(*more: str) -> Supervised:
        return configure(*settings, *more).task.open(configure(*settings, *more), range(2), torch.device("cpu"))

    outputs = 8 * 32 * 2000 * 8
    monkeypatch.setattr(supervised, "available_memory", lambda: 2 * outputs)
    with pytest.raises(ConfigError, match=r"batch_size=8 needs 0\.01\d GB of memory .* only 0\.0082 GB") as refusal:
        opened()
    fits = re.search(r"use (batch_size=[2-4]) or less or a smaller data\.longest or", str(refusal.value))
    assert fits
    opened(fits[1])
    monkeypatch.setattr(supervised, "available_memory", lambda: 6 * outputs)
    problem = opened()
    whole = problem.worker_statistics(problem.init().repeat(2, 1))
    monkeypatch.setattr(supervised, "_OUTPUT_BYTES", 3 * outputs // 8)
    for size, examples in (("batch_size=2", 3), ("batch_size=5", 5)):
        problem = opened(size)
        assert problem.forward_examples == examples
        pieces = problem.worker_statistics(problem.init().repeat(2, 1))
        assert torch.allclose(pieces, whole, rtol=1e-12)


def test_the_available_memory_is_what_the_kernel_and_the_control_group_leave(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "_MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_GROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_GROUPS", str(tmp_path))
    assert machine.available_memory() > 2**28
    (tmp_path / "meminfo").write_text("MemTotal: 900 kB\nMemAvailable:  500 kB\nSwapFree: 20 kB\n")
    assert machine.available_memory() == 520 * 1024
    (tmp_path / "cgroup").write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job/memory.stat").write_text("anon 1000\nfile 50000\n")
    for most, left in (("max", 520 * 1024), ("9000", 8000)):
        (tmp_path / "job/memory.max").write_text(f"{most}\n")
        assert machine.available_memory() == left


def test_what_is_wrong_with_shards_is_said(tmp_path):
    good = write(tmp_path / "a", train=stream(4000, 3))
    for name, content, words in (
        ("x.bin", b"123", "not a token shard"),
        ("x.bin", np.array([20240520, 1, 9, *[0] * 253], "<i4").tobytes() + b"12", "has 9 tokens, but there are 1"),
        (
            "x.bin",
            np.array([20230520, 1, 1, *[0] * 253], "<i4").tobytes() + b"12",
            "version 20230520 and 1, not 20240520",
        ),
        ("x.bin", stream(400, 0).astype("<u4").tobytes(), "it looks like uint32 without a header"),
        ("x.npy", b"nothing", "not a token shard"),
    ):
        (Path(good) / name).write_bytes(content)
        with pytest.raises(ConfigError, match=words):
            TokenShards(path=good).inspect()
        (Path(good) / name).unlink()
    for settings, words in (
        ({"path": str(tmp_path)}, "has no token shards"),
        ({"path": good, "longest": 5000}, "exceeds the tokens for"),
    ):
        with pytest.raises(ConfigError, match=words):
            TokenShards(**settings).inspect()
    with pytest.raises(ConfigError, match=r"outside the range of data\.vocabulary=9"):
        TokenShards(path=good, longest=8, vocabulary=9, end_of_text=END).load("cpu", 0).tested(torch.arange(5))
