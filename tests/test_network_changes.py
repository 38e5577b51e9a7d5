"""Networks that change under way: what links are like in which step, what that takes, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from configure import configure
from decentral.cluster.links import Links
from decentral.cluster.network_changes import ChangingCosts, Mode, NetworkChanges
from decentral.config.identity import identity
from decentral.errors import ConfigError
from decentral.measurements.timeline import Timeline as SimulatedTime
from decentral.training.faults import VARIABLE, Injected
from table import FREE

PAPER_C1 = """1/25, 2/20, 4/15, 8/10, 16/5, 32/1, 32/1, 16/5, 8/10, 4/15, 2/20, 1/25"""
"""Latency in ms / Gbit/s of each 4 epochs (specification, section 5); afterwards 1/25."""
STEPS = (
    *(*FREE, "cluster.links.latency_s=null", "cluster.links.bandwidth_gbps=null", "cluster.network.mode=steps"),
    *("cluster.network.segment_epochs=5", "cluster.network.latency_s=[0.25,0.5]"),
    "cluster.network.bandwidth_gbps=[inf,inf]",
)
"""Without links of its own: 0.25 s for five epochs, then 0.5 s."""
QUADRATICS = ("task=quadratics", "task.dimension=5", "steps=20", "num_workers=4", "evaluation.every_epochs=5")


def changing(mode: Mode, links: Links | None = None, seed: int = 0, **settings: object) -> ChangingCosts:
    links = links or Links(copy_gbps=math.inf)
    changes = NetworkChanges(mode, **settings)  # type: ignore[arg-type]
    return ChangingCosts(changes, links, 4, seed, steps_per_epoch=2.5)


def seen(network: ChangingCosts, step: int, seconds: float = 0.0) -> tuple[float, float]:
    """Latency in seconds, Gbit/s."""
    costs = network.at(step, seconds)
    return costs.hop_s(0, 1), 8e-9 / (costs.message_s(0, 1, 1.0) - costs.hop_s(0, 1))


# -- what links are like -----------------------------------------------------------------------------------------------


def test_paper_c1_is_the_schedule_of_the_papers_code() -> None:
    cluster = configure("cluster=paper_c1", "algo=allreduce", "num_workers=8", *QUADRATICS[:2]).cluster
    network = cluster.changing(8, 0, steps_per_epoch=3.0)
    expected = [tuple(map(float, each.split("/"))) for each in PAPER_C1.split(", ")]
    for epoch in range(101):
        latency_ms, gbps = expected[min(epoch // 4, 11)]
        for step in (3 * epoch, 3 * epoch + 2):
            assert seen(network, step) == (pytest.approx(latency_ms * 1e-3), pytest.approx(gbps))


def test_segments_begin_with_the_first_step_of_their_epochs() -> None:
    network = changing(Mode.steps, segment_epochs=1.0, latency_s=[1.0, 2.0, 3.0], bandwidth_gbps=[8e-9] * 3)
    assert [seen(network, step)[0] for step in range(9)] == [1, 1, 1, 2, 2, 3, 3, 3, 3]  # 2.5 steps in an epoch
    assert network.at(3, 0.0) is network.at(4, 0.0)


def test_a_walk_begins_as_usual_and_stays_in_its_range() -> None:
    links = Links(latency_s=1e-3, bandwidth_gbps=10.0, copy_gbps=math.inf)
    settings = {"segment_epochs": 0.4, "drift": 0.3, "most": 2.0}
    walk = [seen(changing(Mode.random_walk, links, **settings), step) for step in range(200)]
    assert walk[0] == (1e-3, pytest.approx(10.0))
    ratios = np.log2(np.array(walk) / walk[0])
    assert np.abs(ratios).max() <= 1 + 1e-9 and np.all(np.ptp(ratios, axis=0) > 1.5), "in steps of a fifth of the range"
    steps = np.diff(np.array(walk)[:, 0]) != 0
    assert steps.all(), "a segment is a step here"
    backwards = changing(Mode.random_walk, links, **settings)
    assert [seen(backwards, step) for step in reversed(range(200))] == walk[::-1]
    assert [seen(changing(Mode.random_walk, links, 1, **settings), step) for step in range(9)] != walk[:9]


@pytest.mark.parametrize("unit", ["epoch", "seconds"])
def test_a_trace_says_from_when_on(tmp_path: Path, unit: str) -> None:
    (tmp_path / "network.csv").write_text(f"{unit},latency_s,bandwidth_gbps\n0,1,8\n2,3,4\n10,0.5,16\n")
    network = changing(Mode.trace, trace=str(tmp_path / "network.csv"))
    places = [(0, 1.0), (4, 1.9), (5, 2.0), (24, 9.9), (25, 10.0), (10**6, 1e9)]
    expected = [(1, 8), (1, 8), (3, 4), (3, 4), (0.5, 16), (0.5, 16)]
    for (step, seconds), (latency, gbps) in zip(places, expected, strict=True):
        where = (step, 0.0) if unit == "epoch" else (0, seconds)
        assert seen(network, *where) == (latency, pytest.approx(gbps, rel=1e-6))


def test_of_machines_the_links_between_them_change() -> None:
    links = Links(latency_s=1.0, bandwidth_gbps=8e-9, copy_gbps=math.inf, workers_per_machine=2)
    network = changing(Mode.steps, links, segment_epochs=1.0, latency_s=[5.0], bandwidth_gbps=[4e-9])
    assert network.first.message_s(0, 1, 10) == 11 and network.first.message_s(1, 2, 10) == pytest.approx(25)


# -- what that takes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algo", "messages"),
    [(("algo=allreduce",), 6), (("algo=allreduce", "compress=topk"), 2), (("algo=dpsgd", "topology=ring"), 1)],
    ids=["ring all-reduce", "all-gather", "neighbours"],
)
def test_steps_take_what_links_cost_in_their_epoch(start, algo: tuple[str, ...], messages: int) -> None:
    plain = start(*algo, *QUADRATICS, "trace=true", directory="plain")
    run = start(*algo, *QUADRATICS, *STEPS, "trace=true", directory="run")
    assert np.array_equal(run.iterates, plain.iterates), "time follows from values nowhere"
    found = {row["step"]: row["simulated_s"] for row in run.rows}
    for step in (0, 5, 10, 20):
        latencies = 0.25 * min(step, 5) + 0.5 * max(0, step - 5)
        assert found[step] == pytest.approx(step + messages * latencies, rel=1e-12)


def test_a_trace_by_seconds_holds_from_the_first_step_that_begins_after_it(start, tmp_path: Path) -> None:
    (tmp_path / "network.csv").write_text("seconds,latency_s,bandwidth_gbps\n0,0.5,inf\n2.9,0,inf\n")
    trace = f"cluster.network.trace={tmp_path / 'network.csv'}"
    run = start("algo=dpsgd", "topology=ring", *QUADRATICS, *STEPS[:-4], "cluster.network.mode=trace", trace)
    assert {row["step"]: row["simulated_s"] for row in run.rows}[20] == 2 * 1.5 + 18


def test_it_goes_on_bit_for_bit(start, monkeypatch) -> None:
    overrides = [
        *("algo=dpsgd", "topology=ring", *QUADRATICS, "checkpoint_every_s=0.000001", *FREE),
        *("cluster.links.latency_s=0.1", "cluster.network.mode=random_walk", "cluster.network.drift=0.5"),
        "cluster.network.segment_epochs=2",
    ]
    straight = start(*overrides, directory="straight")
    monkeypatch.setenv(VARIABLE, json.dumps([{"rank": 0, "step": step, "kind": "raise"} for step in (5, 12)]))
    for _ in range(2):
        with pytest.raises(Injected):
            start(*overrides, directory="broken")
    broken = start(*overrides, directory="broken")
    for fact in ("simulated_s", "simulated_shares"):
        assert broken.facts[fact] == straight.facts[fact]
    assert straight.facts["simulated_s"] > 20.5 and straight.facts["simulated_s"] != pytest.approx(22, rel=1e-3)


def test_timelines_have_traces_by_seconds_alone(tmp_path: Path) -> None:
    words = ("algo=dpsgd", "topology=ring", "num_workers=4", "steps=20", "simulate=timeline", *QUADRATICS[:2])
    with pytest.raises(ConfigError, match=r"cluster.network.mode=steps goes by epochs, of which there are none"):
        configure(*words, *STEPS)
    (tmp_path / "network.csv").write_text("seconds,latency_s,bandwidth_gbps\n0,0.5,inf\n2.9,0,inf\n")
    trace = f"cluster.network.trace={tmp_path / 'network.csv'}"
    config = configure(*words, *STEPS[:-4], "cluster.network.mode=trace", trace, "cluster.num_parameters=10")
    assert SimulatedTime(config, steps=20).line(0)["simulated_s"] == 2 * 1.5 + 18


# -- identities, and what is refused -----------------------------------------------------------------------------------


def test_a_network_that_does_not_change_is_no_part_of_the_identity() -> None:
    config = configure("algo=dpsgd", "topology=ring", *QUADRATICS, *FREE)
    assert "network" not in identity(config)["cluster"]
    assert identity(configure("algo=dpsgd", "topology=ring", *QUADRATICS, *STEPS))["cluster"]["network"] == {
        "mode": "steps",
        "segment_epochs": 5.0,
        "latency_s": [0.25, 0.5],
        "bandwidth_gbps": [math.inf, math.inf],
    }


REFUSED = [
    (["cluster.network.latency_s=[0.1]"], "1 numbers and cluster.network.bandwidth_gbps 2, which leaves a hole"),
    (["cluster.network.latency_s=[0.1,-1]"], "cluster.network.latency_s=-1 makes no sense"),
    (["cluster.network.bandwidth_gbps=[1,0]"], "cluster.network.bandwidth_gbps=0 makes no sense"),
    (["cluster.network.latency_s=[]", "cluster.network.bandwidth_gbps=[]"], "give at least one segment"),
    (["cluster.network.segment_epochs=0"], "segment_epochs=0 makes no sense"),
    (["cluster.network.latency_s=null"], "mode=steps needs cluster.network.latency_s"),
    (["cluster.links.latency_s=1"], "cluster.links.latency_s=1 has no meaning with cluster.network.mode=steps"),
    (["algo=wagma"], "mode=steps is for methods in rounds: with algo=wagma workers go on by themselves"),
]


@pytest.mark.parametrize(("further", "told"), REFUSED, ids=[told[:40] for _, told in REFUSED])
def test_what_makes_no_sense_is_refused(further: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configure("algo=dpsgd", "topology=ring", *QUADRATICS[:3], "num_workers=8", *STEPS, *further)
    assert told in str(refused.value) and str(refused.value).count("\n") == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0,1,8\n", "its first line has to be epoch,latency_s,bandwidth_gbps or"),
        ("epoch,latency_s,bandwidth_gbps\n", "has a hole: what holds from the beginning on"),
        ("epoch,latency_s,bandwidth_gbps\n4,1,8\n", "has a hole: what holds from the beginning on"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\n2,5\n", "line 3 of cluster.network.trace"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\n2,x,8\n", "has 'x' where a number of seconds"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\n3,1,8\n2,1,8\n", "line 4"),
        ("epoch,latency_s,bandwidth_gbps\n0,-1,8\n", "has '-1' where a number of seconds"),
        ("epoch,latency_s,bandwidth_gbps\n0,1,8\nnan,1,8\n", "line 3"),
    ],
)
def test_traces_with_holes_are_refused(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "network.csv").write_text(text)
    with pytest.raises(ConfigError) as refused:
        changing(Mode.trace, trace=str(tmp_path / "network.csv"))
    assert told in str(refused.value)
    with pytest.raises(ConfigError, match="is not a file"):
        changing(Mode.trace, trace=str(tmp_path / "none.csv"))


def test_links_of_a_file_do_not_change(tmp_path: Path) -> None:
    (tmp_path / "links.csv").write_text("0,1,1,1\n")
    links = Links(copy_gbps=math.inf, file=str(tmp_path / "links.csv"))
    with pytest.raises(ConfigError, match=r"cluster.links.file=.* leave one of them out"):
        changing(Mode.steps, links, segment_epochs=1.0, latency_s=[5.0], bandwidth_gbps=[4e-9])
