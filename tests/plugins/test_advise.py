"""`decentral-advise`: what a step is predicted to take, what is advised, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from conftest import exit_status
from decentral.cluster.links import CollectiveName
from decentral.compression.rows import RowLayout
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.plugins.advise import command as cli
from decentral.plugins.advise.advise import advise
from decentral.plugins.advise.machine import fitted, layout_of
from decentral.plugins.advise.methods import CODING_NS, METHODS, Case, in_means, predict_overlapped
from decentral.registry import components
from decentral.training.timing import timed

MODEL = ["model=mlp", "data=digits"]
LAYOUT = RowLayout(("weight", "bias"), ((300, 200), (200,)))
N, P = 4, LAYOUT.num_coordinates
CLUSTER = ["cluster=machines", "cluster.compute.mean_s=0.3", "cluster.links.copy_gbps=inf"]


def on(latency_s: float, bandwidth_gbps: float, *more: str) -> list[str]:
    links = [f"cluster.links.latency_s={latency_s}", f"cluster.links.bandwidth_gbps={bandwidth_gbps}"]
    return [*CLUSTER, *links, *more]


def case(cluster: list[str], *words: str, layout: RowLayout = LAYOUT, backward: float = 2 / 3) -> Case:
    timeline = ["simulate=timeline", "steps=8", f"num_workers={N}", *cluster]
    return Case(compose([*timeline, *words]), layout, backward, 8)


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    return exit_status(cli.main, *arguments), *capsys.readouterr()


# -- predictions -------------------------------------------------------------------------------------------------------


def test_an_all_reduce_is_hidden_behind_the_backward_pass_but_for_the_last_bucket():
    """A ring of alpha = 1 ms: 6 ms of latency for a bucket and 2 (n - 1)/n N beta for its bytes."""
    layout = RowLayout(("x",), ((25_000_000,),))  # 4 buckets of 25 MB
    fast = case(on(1e-3, 100), "algo=allreduce", layout=layout)
    bucket_s = 6 * (1e-3 + 25e6 / N * 8e-9 / 100)
    found = predict_overlapped(fast)
    assert found.step_s == pytest.approx(0.3 + bucket_s)
    assert found.bytes_per_step == pytest.approx(2 * 3 / 4 * 100e6)
    slow = case(on(1e-3, 1), "algo=allreduce", layout=layout)
    bucket_s = 6 * (1e-3 + 25e6 / N * 8e-9)
    assert bucket_s > 0.05  # the network is what limits: it is busy from the first bucket on
    assert predict_overlapped(slow).step_s == pytest.approx(0.1 + 0.2 / 4 + 4 * bucket_s)
    nothing_hidden = predict_overlapped(slow._replace(backward=0.0))
    assert nothing_hidden.step_s == pytest.approx(0.3 + 4 * bucket_s)


@pytest.mark.parametrize(
    ("compress", "verbs", "bytes_per_worker"),
    [
        ("none", 1, 2 * 3 / 4 * 4 * P),
        ("bf16", 1, 2 * 3 / 4 * 2 * P),
        ("topk", 1, 3 * 8 * (P // 10)),
        ("int8", 1, 3 * (P + 4 * math.ceil(P / 2048))),
        ("powersgd", 2, 2 * 3 / 4 * 4 * (2 * 500 + 200)),
        ("artopk", 2, 3 / 4 * 4 * (P // 10) + 2 * 3 / 4 * 4 * (P // 10)),
    ],
)
def test_bytes_of_a_compressed_mean_are_those_of_its_verbs(compress: str, verbs: int, bytes_per_worker: float):
    found = in_means(components("compression")[compress](), LAYOUT, N, measured=True)
    assert len(found.sent) == verbs
    assert found.bytes_per_worker == pytest.approx(bytes_per_worker)
    assert found.work_s > 0


@pytest.mark.slow
def test_every_method_is_predicted_or_says_why_not():
    given = ["num_workers=8", "cluster=slow_network", *MODEL]
    told: list[str] = []
    found = advise(given, None, None, told.append)
    assert {row["method"] for row in found["methods"]} == {method.title for method in METHODS}
    assert told == [] and not found["impossible"]
    times = [row["step_s"] for row in found["methods"]]
    assert times == sorted(times) and times[0] >= 0.16
    assert all(row["bytes_per_step"] > 0 for row in found["methods"])
    layout = layout_of(compose(["simulate=timeline", "steps=8", *given]))
    assert found["num_parameters"] == layout.num_coordinates and len(layout.shapes) > 1


def test_with_a_cluster_nothing_is_timed_and_the_answer_is_the_same_twice(monkeypatch: pytest.MonkeyPatch):
    asked = ("all-reduce, int8", "CHOCO-SGD on a ring, top-k 1 %")
    few = [method for method in METHODS if method.is_ddp or method.title in asked]
    monkeypatch.setattr("decentral.plugins.advise.advise.METHODS", few)
    given = ["num_workers=4", "cluster=slow_network", *MODEL]
    one, again = (advise(given, None, None, lambda _: None) for _ in range(2))
    assert one == again and one["coding"] == "table"
    assert {
        name for method in METHODS for word in method.words if (name := word.removeprefix("compress=")) != word
    } <= {*CODING_NS}
    coding = {row["method"]: row["coding_s"] for row in one["methods"]}
    assert coding["all-reduce, int8"] == pytest.approx(1e-9 * one["num_parameters"] * (6.4 + 3 * 0.55))
    assert coding["CHOCO-SGD on a ring, top-k 1 %"] == pytest.approx(1e-9 * one["num_parameters"] * (2.3 + 4 * 0.15))
    told: list[str] = []
    assert advise(given, None, None, told.append, measures=True)["coding"] == "measured"
    assert "timing encoding and decoding on this machine: about" in told[0]


@pytest.mark.slow
def test_the_time_of_methods_without_compression_is_that_of_a_timeline():
    found = advise(["num_workers=8", "cluster=slow_network", *MODEL], None, None, lambda _: None)
    for row in found["methods"]:
        if row["method"].startswith(("D-PSGD on", "WAGMA", "RelaySGD")):
            words = ["simulate=timeline", "steps=200", "num_workers=8", "cluster=slow_network", *row["settings"]]
            clock = timed(prepare(compose(words)), 200, found["num_parameters"])
            assert row["step_s"] == pytest.approx(clock.step_s)
            assert row["bytes_per_step"] == pytest.approx(clock.bytes_sent / clock.gradients)


# -- the advice --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_where_the_network_is_slow_it_is_not():
    large = ["cluster=slow_network", "cluster.num_parameters=2000000"]
    found = advise([*MODEL, "num_workers=8", *large], None, None, lambda _: None)
    best, ddp = found["methods"][0], next(row for row in found["methods"] if row["method"].startswith("Distributed"))
    assert not found["use_ddp"] and best["step_s"] < ddp["step_s"] / 1.1
    assert f"'{best['method']}' is predicted to take" in found["verdict"]
    (why,) = found["impossible"].values()
    assert "the shapes of the parameters" in why


# -- what is measured --------------------------------------------------------------------------------------------------


class Plain(nn.Sequential):
    """A plain module of a user."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def test_a_plain_module_is_measured_in_parameters() -> None:
    config = compose([f"model={__name__}:Plain", "data=digits", "num_workers=4"])
    assert layout_of(config).num_coordinates == config.task.num_parameters(config) == 650


def test_latency_and_bandwidth_follow_from_two_exchanges_and_the_collective_from_a_third():
    alpha, beta, small, large = 2e-4, 8e-9 / 5, 4 * 256, 4 * 250_000
    for n, collective in ((2, CollectiveName.tree), (8, CollectiveName.recursive_doubling), (8, CollectiveName.ring)):
        d = min(n - 1, 2)
        seconds = {"mix small": alpha + d * small * beta, "mix large": alpha + d * large * beta, "copy": 1e-3}
        seconds["mean large"] = collective.value.seconds(n, large, alpha, beta)
        found = fitted(seconds, n, large)
        assert found.latency_s == pytest.approx(alpha)
        assert found.bandwidth_gbps == pytest.approx(5)
        assert found.copy_gbps == pytest.approx(8e-9 * large / 1e-3)
        taken = CollectiveName[found.collective].value.seconds(n, large, alpha, beta)
        assert taken == pytest.approx(seconds["mean large"])


@pytest.mark.slow
def test_this_machine_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    file = tmp_path / "advice.json"
    code, out, told = command(capsys, *MODEL, "device=cpu", "processes=2", "--json", "--output", str(file))
    assert code == 0, told
    found: dict[str, Any] = json.loads(out)
    assert json.loads(file.read_text()) == found
    assert found["num_workers"] == found["measured"]["processes"] == 2
    assert found["measured"]["latency_s"] > 0 and found["measured"]["bandwidth_gbps"] > 0
    assert found["gradient_s"] > 0 and 0 <= found["backward_share"] <= 1
    assert "measuring a pass of model=mlp" in told and "in each of 2 processes: about" in told


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["modle=mlp"], "modle"),
        (["algo=wagma", "cluster=even"], "algo=wagma cannot be set here: decentral-advise compares methods"),
        (["compress.keep=0.1", "cluster=even"], "compress.keep=0.1 cannot be set here"),
        (["cluster=even", "processes=4"], "conflicts with cluster=even"),
        (["processes=1"], "is not valid: use a whole number from 2 to 64"),
        (["processes=many"], "processes=many is not valid: use a whole number from 2 to"),
        (["cluster.links.latency_s=1"], "needs a cluster: also give cluster=machines"),
        (["cluster=even", "num_workers=1"], "num_workers=1 leaves a worker without neighbors"),
        (["task=quadratics", "device=cpu"], "task=quadratics has no model to time"),
        (["cluster=machines"], "is missing|is not given|needs"),
        (["cluster=even", "--output", "."], "--output . is a folder"),
        (["--jsno"], "--jsno is not an option. Did you mean '--json'"),
    ],
)
def test_bad_input_is_one_sentence(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str):
    code, out, err = command(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("decentral-advise: ") and err.count("\n") == 1
    assert any(part in err for part in told.split("|"))
