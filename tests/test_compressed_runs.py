"""Runs with compressed messages: they diverge in the open, sizes that divide nothing work, what has no meaning is
refused in a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from configure import configure
from decentral.compression.compressor import AcceptedCompression
from decentral.compression.row_layout import RowLayout
from decentral.errors import ConfigError
from decentral.network.local import LocalNetwork
from decentral.registry import components
from decentral.topology.chain import Chain
from decentral.topology.delivery import Losses

SMALL = ("task=quadratics", "task.dimension=7", "steps=30", "evaluation.every_epochs=10")
COMPRESSORS: dict[str, Any] = components("compression")


def users(takes: AcceptedCompression) -> list[str]:
    return sorted(name for name, cls in COMPRESSORS.items() if cls.suits(takes))


RUNS = [
    *(("allreduce", "ring", name) for name in users(AcceptedCompression.means)),
    *(("choco", "ring", name) for name in users(AcceptedCompression.payloads)),
    *(("dpsgd", "ring", name) for name in users(AcceptedCompression.rows)),
    *(("relaysgd", "dbt", name) for name in users(AcceptedCompression.rows)),
]


@pytest.mark.parametrize(("algo", "topology", "compress"), RUNS)
def test_a_learning_rate_that_is_far_too_large_ends_as_diverged(start, algo: str, topology: str, compress: str) -> None:
    words = [f"algo={algo}", f"topology={topology}", "num_workers=5", f"compress={compress}", "lr=1e150"]
    words += ["cluster=slow_network"] if COMPRESSORS[compress].chooses else []
    result = start(*SMALL, *words)
    assert result.status == result.facts["status"] == "diverged"


@pytest.mark.parametrize("select", ["star", "var"])
def test_what_is_no_number_is_sent_by_ar_topk_when_it_is_the_workers_turn(select: str) -> None:
    """It lies where nobody else's largest entries are, and waits in the residual until then: n steps at most."""
    from test_compression import Together

    compressor = COMPRESSORS["artopk"](keep=0.1, select=type(COMPRESSORS["artopk"]().select)(select))
    compressor = compressor.bound(RowLayout.flat(20), 0)
    g, net = torch.ones(4, 20), Together(4)
    g[:, :2] = 5.0
    r, memory = compressor.residual(g), compressor.memory(g, 4)
    found = []
    for t in range(4):
        rows = g.clone()
        rows[3, 11] = torch.nan if t == 0 else 1.0
        mean, r, memory = compressor.combine(rows, r, memory, net, t)
        found.append(bool(mean.isnan().any()))
    assert found == ([False, False, False, True] if select == "star" else [True, False, False, False])


@pytest.mark.parametrize(("algo", "topology"), [("dpsgd", "ring"), ("relaysgd", "dbt"), ("choco", "ring")])
@pytest.mark.parametrize(
    ("compress", "least", "most"), [("bf16", 1e-9, 2**-16), ("int8", 1e-9, 0.01), ("sign", 0.0, 1)]
)
def test_what_rounded_messages_leave_out_is_recorded(start, algo, topology, compress, least, most) -> None:
    result = start(*SMALL, f"algo={algo}", f"topology={topology}", "num_workers=4", f"compress={compress}")
    found = [row for row in result.rows if row["metric"] == "compression_error" and row["worker"] != "mean"]
    assert {(row["step"], row["worker"]) for row in found} == {(t, i) for t in (10, 20, 30) for i in range(4)}
    assert all(least <= row["value"] <= most for row in found)


def test_of_a_worker_that_relays_all_messages_count() -> None:
    """A chain of 3 with two different messages from the middle: signs times the mean magnitude, by the definition."""
    compressor = COMPRESSORS["sign"]().bound(RowLayout.flat(6), 0)
    net = LocalNetwork(Chain().schedule(3), Losses(0.0, 0))
    drawn = torch.Generator().manual_seed(0)
    y, m = (torch.randn(rows, 6, generator=drawn, dtype=torch.float64) for rows in (3, 4))
    sums: dict[int, list[torch.Tensor]] = {0: [], 1: [], 2: []}
    for e, (src, dst) in enumerate(zip(net.edges.src.tolist(), net.edges.dst.tolist(), strict=True)):
        others = [row for f, row in enumerate(m) if int(net.edges.dst[f]) == dst and f != e]
        sums[dst].append(y[dst] + sum(others))  # goes back from dst to src
        assert abs(src - dst) == 1
    compression_stats = compressor.compression_stats(y)
    compressor.relay(y.clone(), m.clone(), net, 0)
    for i, messages in sums.items():
        e = torch.stack(messages)
        sent = e.sign() * e.abs().mean(1, keepdim=True)
        expected = [sent.square().sum() / e.square().sum(), (e - sent).square().sum() / e.square().sum(), 1.0]
        assert compression_stats[i].tolist() == pytest.approx([float(each) for each in expected])


@pytest.mark.parametrize("block", [1, 3, 7, 8])
@pytest.mark.parametrize(("algo", "topology"), [("allreduce", "ring"), ("choco", "ring"), ("relaysgd", "dbt")])
def test_blocks_that_do_not_divide_a_row_are_counted(start, algo: str, topology: str, block: int) -> None:
    """Seven numbers, on two trees four and three: a byte for each, and 8 for every block that has begun."""
    words = (f"algo={algo}", f"topology={topology}", "num_workers=4", "compress=int8", f"compress.block={block}")
    result = start(*SMALL, *words)
    widths, messages = ([4, 3], 6) if topology == "dbt" else ([7], 12 if algo == "allreduce" else 8)
    assert result.status == "done"
    assert result.facts["bytes_sent"] == 30 * messages * sum(width + 8 * -(-width // block) for width in widths)


@pytest.mark.parametrize("algo", ["choco", "beer", "allreduce", "dpsgd"])
def test_one_worker_has_nobody_to_tell(start, algo: str) -> None:
    words = (f"algo={algo}", "topology=ring", "num_workers=1", "task.zeta2=0", "compress=bf16")
    result = start(*SMALL, *words)
    assert result.status == "done" and result.facts["bytes_sent"] == 0


def test_one_worker_relays_nothing(start) -> None:
    result = start(*SMALL, "algo=relaysgd", "topology=chain", "num_workers=1", "task.zeta2=0", "compress=int8")
    assert result.status == "done" and result.facts["bytes_sent"] == 0


def test_lost_messages_of_a_relay_are_zero_whatever_they_say(start) -> None:
    words = ("algo=relaysgd", "topology=dbt", "num_workers=5", "network.drop_probability=0.3", "trace=true")
    rounded, plain = (start(*SMALL, *words, *more, directory=str(more)) for more in (("compress=bf16",), ()))
    assert rounded.facts["messages_sent"] == plain.facts["messages_sent"]
    assert 4 * rounded.facts["bytes_sent"] == plain.facts["bytes_sent"]
    assert abs(rounded.iterates - plain.iterates).max() < 0.1 * abs(plain.iterates).max()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("algo=sgp compress=bf16", "compress=bf16 cannot be used with algo=sgp, which sends rows as they are: leave"),
        ("algo=wagma compress=topk", "algo=wagma, which sends rows as they are: leave it out"),
        ("algo=d2 topology=ring compress=topk", "algo=d2, which sends rows as they are: leave it out"),
        ("algo=choco topology=ring compress=powersgd", "algo=choco, which needs messages of another kind: use bf16 or"),
        ("algo=choco topology=dbt compress=topk", "sends whole models, but topology=dbt with num_workers=4 cuts them"),
        (
            "algo=relaysgd topology=dbt compress=bf16 communication.every=2",
            "algo=relaysgd relays over the same trees in every step, so that communication.every=2 cannot be used",
        ),
        (
            "algo=choco topology=ring compress=topk communication.every=2",
            "compress=topk cannot be used with other rounds than one in every step: leave out communication.",
        ),
        (
            "algo=choco topology=ring compress=topk network.drop_probability=0.1",
            "cannot be used with algo=choco: it needs every message; message loss is for algorithms with a rule for it",
        ),
        (
            "algo=allreduce compress=topk network.drop_probability=0.1",
            "cannot be used with algo=allreduce: an all-reduce is reliable; message loss is for algorithms with a rule",
        ),
        (
            "algo=choco topology=ring compress=topk compress.error_feedback=false",
            "compress.error_feedback=false makes no difference to algo=choco, which keeps no residuals: leave it out.",
        ),
    ],
)
def test_what_compression_is_not_for_is_refused_in_a_sentence(words: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        configure("task=quadratics", "num_workers=4", *words.split())
