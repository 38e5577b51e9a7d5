"""The simulated clock obeys conservation laws: nothing goes through a port faster than it can, or uncounted."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from configure import configure
from decentral.cluster.clock import Clock, Use
from decentral.cluster.links import LinkCosts, Links
from decentral.config.prepared import prepare
from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.training.timing import Timed, timed
from table import ALGORITHMS, ASYNCHRONOUS, LOSSY, MACHINES, SLOW_LINKS, TASKS, run_of

SLOW = SLOW_LINKS
CLUSTERS: dict[str, tuple[str, ...]] = {
    "fast network": (
        *(*MACHINES, "cluster.links.latency_s=1e-3", "cluster.links.bandwidth_gbps=1"),
        "cluster.links.copy_gbps=1",
    ),
    "slow network": (*MACHINES, *SLOW),
    "one port": (*MACHINES, *SLOW, "cluster.links.ports=one"),
    "auto": (*MACHINES, *SLOW, "cluster.links.collective=auto"),
    "recursive doubling": (*MACHINES, *SLOW, "cluster.links.collective=recursive_doubling"),
    "two delayed": (
        *("cluster=two_delayed", "cluster.compute.mean_s=0.01", "cluster.stragglers.delay_s=0.1"),
        *("cluster.stragglers.count=2", *SLOW, "cluster.links.collective=tree"),
    ),
    "all together": (*MACHINES, *SLOW, "cluster.waits_for=everyone"),
    "shared way out": (
        *(*MACHINES, *SLOW, "cluster.links.workers_per_machine=1", "cluster.links.between_latency_s=1e-3"),
        *("cluster.links.between_bandwidth_gbps=1e-5", "cluster.links.shared_gbps=4e-6"),
    ),
}  # fmt: skip
EVEN = ("cluster=machines", "cluster.compute.mean_s=1")
STEPS = 6
MANY = 40
"""So that messages of asynchronous methods queue up."""


def method(name: str, folder: Path) -> list[str]:
    """Its usual settings and topology, on a small task."""
    if name in ASYNCHRONOUS:
        case = ASYNCHRONOUS[name]
        return [f"algo={name}", "task=quadratics", "task.dimension=40", *case.net.overrides(folder), *case.overrides]
    known = ALGORITHMS[name]
    task = (
        ["task=quadratics", "task.dimension=40"]
        if known.task == "quadratics"
        else [f"task={known.task}", *TASKS[known.task]]
    )
    return [f"algo={name}", *task, *known.nets[0].overrides(folder), *known.overrides]


def alone(config: Config, ledger: list[Use] | None = None, steps: int = STEPS) -> Timed:
    """Its time without training."""
    parameters = config.task.num_parameters(config)
    return timed(prepare(config), steps, parameters, steps_per_epoch=1.0, ledger=ledger)


def in_cluster(name: str, folder: Path) -> tuple[str, ...]:
    """The settings of one of CLUSTERS, or of machines that differ and change."""
    if name != "devices":
        return CLUSTERS[name]
    lines = [
        f"{i},{at},{rng.uniform(1, 3)},{rng.uniform(0.5, 2) * 1e-5},{rng.uniform(0.5, 2) * 1e-5}"
        for i, rng in enumerate(map(np.random.default_rng, range(8)))
        for at in (0, 0.5, 1.5, 4, 9)
    ]
    (folder / "devices.csv").write_text("\n".join(["worker,seconds,slowdown,up_gbps,down_gbps", *lines]))
    return (*MACHINES, *SLOW, "cluster.links.bandwidth_gbps=null", f"cluster.devices={folder / 'devices.csv'}")


def capacity(times: list[float], speeds: list[float], begins: float, ends: float) -> float:
    """Bytes that a port with these speeds from these times on can carry in between."""
    spans = zip(times, [*times[1:], math.inf], speeds, strict=True)
    return sum(max(0.0, min(ends, until) - max(begins, since)) * speed for since, until, speed in spans)


def conserves(ledger: list[Use], costs: LinkCosts) -> None:
    """No port carries two things at once, or more than it can; nothing comes in that has not gone out."""
    ports = defaultdict(list)
    for use in ledger:
        ports[use.worker, use.way if costs.ways == 1 else "both"].append(use)
    for (worker, way), uses in ports.items():
        together: dict[tuple[float, float], float] = defaultdict(float)
        for use in uses:
            together[use.begins, use.ends] += use.num_bytes
        before = 0.0
        for (begins, ends), num_bytes in sorted(together.items()):
            assert begins >= before - 1e-9, "two at once"
            if costs.devices is None:
                possible = (ends - begins) / max(costs.slowest[1], costs.shared)
            else:
                device = costs.devices[worker]
                possible = capacity(device.begins, device.speed[way], begins, ends)
            assert num_bytes <= possible * (1 + 1e-9) + 1e-6, "faster than the port"
            before = ends
    out, into = (sum(use.num_bytes for use in ledger if use.way == way) for way in ("out", "into"))
    assert into <= out * (1 + 1e-12)


METHODS = sorted({*ALGORITHMS, *ASYNCHRONOUS})
USUAL = [*CLUSTERS, "devices"]


@pytest.mark.parametrize(("place", "name"), list(enumerate(METHODS)))
def test_no_port_carries_more_than_it_can_and_all_of_it_is_counted(tmp_path: Path, place: int, name: str) -> None:
    """On the slow network and on two other clusters in turn."""
    for cluster in {"slow network", USUAL[place % len(USUAL)], USUAL[(4 * place + 3) % len(USUAL)]}:
        config = configure(*method(name, tmp_path), *in_cluster(cluster, tmp_path))
        assert config.num_workers is not None
        ledger: list[Use] = []
        found = alone(config, ledger, MANY if name in ASYNCHRONOUS else STEPS)
        conserves(ledger, config.cluster.costs(config.num_workers))
        left = sum(use.num_bytes for use in ledger if use.way == "out" and use.ends <= found.simulated_s)
        told = found.bytes_sent - left
        few = 8 * (config.num_workers - 1) * MANY if name in ("wagma", "eager_sgd") else 1e-6 * left
        assert -1e-6 * left <= told <= few, cluster


@pytest.mark.parametrize(("place", "name"), list(enumerate(METHODS)))
def test_a_timeline_takes_as_long_and_sends_as_much_as_the_run(recorded, tmp_path: Path, place: int, name: str) -> None:
    """Lost messages travel like all others: those of the run, and in turn those of the timeline."""
    if name in ASYNCHRONOUS:
        overrides = [*method(name, tmp_path), *CLUSTERS["slow network"], "evaluation.initial=false", f"steps={STEPS}"]
    else:
        overrides = run_of(name)
    steps = int(next(word for word in overrides if word.startswith("steps=")).removeprefix("steps="))
    run = recorded(*overrides)
    found = alone(configure(*(word for word in overrides if word != LOSSY or place % 2)), steps=steps)
    assert run.facts["simulated_s"] == pytest.approx(found.simulated_s, rel=1e-12)
    assert run.facts["bytes_sent"] == found.bytes_sent


@pytest.mark.slow
@pytest.mark.parametrize(("place", "name"), list(enumerate(METHODS)))
def test_a_timeline_is_that_of_the_run_in_other_clusters(start, tmp_path: Path, place: int, name: str) -> None:
    cluster = ("one port", "two delayed", "devices")[place % 3]
    overrides = [*method(name, tmp_path), *in_cluster(cluster, tmp_path), "evaluation.initial=false"]
    run, found = start(*overrides, f"steps={STEPS}"), alone(configure(*overrides))
    assert run.facts["simulated_s"] == pytest.approx(found.simulated_s, rel=1e-12)
    assert run.facts["bytes_sent"] == found.bytes_sent


@pytest.mark.parametrize(
    ("name", "ports"),
    [("dpsgd", "duplex"), ("sgp", "one"), ("adpsgd", "duplex"), ("a2cid2", "one"), ("async_push_sum", "one")],
)
def test_a_shared_port_carries_messages_of_all_its_workers(tmp_path: Path, name: str, ports: str) -> None:
    """Two machines of two workers, all of whose messages go to the other machine."""
    (tmp_path / "crossing.csv").write_text("0,2\n0,3\n1,2\n1,3\n")
    config = configure(
        *(f"algo={name}", "task=quadratics", "task.dimension=40", "num_workers=4", *MACHINES, *SLOW),
        *("topology=file", f"topology.path={tmp_path / 'crossing.csv'}", f"cluster.links.ports={ports}"),
        *("cluster.links.workers_per_machine=2", "cluster.links.between_latency_s=0"),
        *("cluster.links.between_bandwidth_gbps=1e-5", "cluster.links.shared_gbps=8e-6", "cluster.compute.sigma=1.5"),
    )
    ledger: list[Use] = []
    found = alone(config, ledger, MANY)
    for machine in (0, 1):
        for way in ("out", "into"):
            uses = [use for use in ledger if use.worker // 2 == machine and use.way == way]
            for begins in {use.begins for use in uses}:
                for ends in {use.ends for use in uses if use.ends > begins}:
                    num_bytes = sum(use.num_bytes for use in uses if begins <= use.begins and use.ends <= ends)
                    assert num_bytes <= 1000 * (ends - begins) * (1 + 1e-9)
    assert found.bytes_sent <= 2 * 1000 * found.simulated_s


def test_pushes_end_with_the_last_step_and_count_once_they_have_left(start) -> None:
    overrides = [
        *("algo=async_push_sum", "topology=one_peer_exponential", "task=quadratics", "cluster.num_parameters=398"),
        *("num_workers=4", *EVEN, *SLOW, "cluster.compute.mean_s=0.01", "cluster.links.latency_s=0"),
    ]
    for steps, left in ((2, 0), (20, 0), (128, 0), (129, 4), (200, 4), (258, 8)):  # 1,600 bytes take 1.28 s
        found = alone(configure(*overrides), steps=steps)
        assert found.simulated_s == pytest.approx(steps * 0.01) and found.bytes_sent == left * 1600
    run = start(*overrides, "steps=200")
    assert run.facts["simulated_s"] == pytest.approx(2.0) and run.facts["bytes_sent"] == 4 * 1600


def test_a_share_from_far_away_takes_a_port_once_it_has_come() -> None:
    """Two machines, a second apart; what a neighbor sends meanwhile is taken in at once."""
    config = configure(
        *("algo=async_push_sum", "topology=complete", "topology.weights=uniform", "num_workers=4", *EVEN),
        *("task=quadratics", "task.dimension=99", "cluster.compute.mean_s=0.1", "cluster.links.copy_gbps=inf"),
        *("cluster.links.latency_s=0", "cluster.links.bandwidth_gbps=1e-3", "cluster.links.workers_per_machine=2"),
        *("cluster.links.between_latency_s=1", "cluster.links.between_bandwidth_gbps=1e-3"),
    )
    ledger: list[Use] = []
    assert set(alone(config, ledger, 30).ages) == {1, 11}
    conserves(ledger, config.cluster.costs(4))


def test_messages_in_flight_at_the_end_are_not_counted(start) -> None:
    overrides = [
        *("algo=relaysgd", "topology=chain", "algo.overlap=true", "task=quadratics", "cluster.num_parameters=800"),
        *("num_workers=4", *EVEN, *SLOW),  # two messages of an inner worker take 5.12 s
    ]
    run, found = start(*overrides, "steps=5"), alone(configure(*overrides), steps=5)
    assert run.facts["bytes_sent"] == found.bytes_sent == 4 * 6 * 3200, "of the last step none"
    assert found.bytes_sent <= 4 * 1250 * found.simulated_s
    assert run.facts["messages_sent"] == 4 * 6


DESCRIBED: dict[str, list[str]] = {
    "int8": ["algo=allreduce", "compress=int8", "num_workers=5"],
    "topk": ["algo=allreduce", "compress=topk", "num_workers=5"],
    "randomk": ["algo=allreduce", "compress=randomk", "num_workers=5"],
    "artopk": ["algo=allreduce", "compress=artopk", "num_workers=5"],
    "choco": ["algo=choco", "topology=ring", "compress=int8", "num_workers=5"],
    "relaysgd": ["algo=relaysgd", "topology=dbt", "compress=int8", "num_workers=6"],
    "relay_mean": ["algo=relay_mean", "topology=dbt", "num_workers=6"],
    "overlapped": ["algo=relaysgd", "topology=dbt", "algo.overlap=true", "num_workers=6"],
    "streaming": ["algo=streaming_diloco", "algo.period_steps=4", "algo.fragments=2", "num_workers=5"],
    "large int8": ["algo=allreduce", "compress=int8", "num_workers=5", "cluster.num_parameters=14001"],
    "odd pieces": ["algo=relaysgd", "topology=dbt", "num_workers=6", "cluster.num_parameters=2000001"],
    "machines": ["algo=dpsgd", "topology=ring", "communication.workers_per_machine=4", "num_workers=12"],
    "sometimes all": ["algo=dpsgd", "topology=ring", "communication.global_every=3", "num_workers=5"],
    "push-sum": ["algo=async_push_sum", "topology=ring", "num_workers=5"],
    "pairs": ["algo=adpsgd", "topology=ring", "num_workers=6"],
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_time_and_bytes_of_a_run_are_those_of_the_model_that_its_cluster_describes(start, name: str) -> None:
    overrides = ["task=quadratics", "task.dimension=3", *CLUSTERS["slow network"], "cluster.num_parameters=1001"]
    overrides += [*DESCRIBED[name], "evaluation.every_epochs=1"]
    found = alone(configure(*overrides))
    whole = start(*overrides, f"steps={STEPS}").facts
    assert (whole["simulated_s"], whole["bytes_sent"]) == (pytest.approx(found.simulated_s), found.bytes_sent)


def test_a_large_model_sends_what_its_formula_says() -> None:
    """What does not grow with the model is not scaled; pieces of unequal length and shards are as long as they are."""
    slow = ["task=quadratics", *CLUSTERS["slow network"]]
    machines = "algo=dpsgd topology=ring communication.workers_per_machine=4 num_workers=12"
    for words, parameters, num_bytes in (
        ("algo=allreduce num_workers=5 compress=int8", 8_192_000, 20 * (8_192_000 + 4 * 4000)),
        (
            "algo=allreduce num_workers=5 compress=artopk compress.select=var compress.keep=0.001",
            8_192_000,
            4 * 32_768 + 8 * 32_768 + 20 * 4,
        ),
        *(("algo=relaysgd topology=dbt num_workers=6", P, 10 * 4 * P) for P in (4001, 4_000_001, 3_999_999)),
        *((machines, P, 12 * (2 * 3 + 2) / 4 * 4 * P) for P in (4000, 4_000_000)),
    ):
        config = configure(*words.split(), *slow, f"cluster.num_parameters={parameters}")
        assert alone(config, steps=1).bytes_sent == num_bytes, words


def devices(folder: Path, up: list[float]) -> str:
    """Machines that send as many bytes a second and receive 1000."""
    lines = [f"{i},0,1,{8e-9 * each},8e-6" for i, each in enumerate(up)]
    (folder / "devices.csv").write_text("\n".join(["worker,seconds,slowdown,up_gbps,down_gbps", *lines]))
    return f"cluster.devices={folder / 'devices.csv'}"


@pytest.mark.parametrize(("collective", "seconds"), [
    ("star", 4 + 1 + 1 + 1 + 1 + 1),  # only the slow worker's own row is slow
    ("tree", 4 + 1 + 1 + 1),
    ("ring", 4 * 1.5),
])  # fmt: skip
def test_a_slow_machine_is_slow_with_what_goes_through_its_own_port(
    tmp_path: Path, collective: str, seconds: float
) -> None:
    config = configure(
        *("algo=allreduce", "task=quadratics", "task.dimension=125", "num_workers=4", *EVEN),
        *(f"cluster.links.collective={collective}", "cluster.links.latency_s=0", "cluster.links.copy_gbps=inf"),
        devices(tmp_path, [1000, 250, 1000, 1000, 1000]),
    )
    assert alone(config, steps=1).simulated_s == pytest.approx(1 + seconds)


def test_probes_and_collectives_wait_for_busy_ports_and_take_them() -> None:
    clock = Clock(4, None, LinkCosts(Links(latency_s=0.0, bandwidth_gbps=8e-6, copy_gbps=math.inf), 4))  # type: ignore[arg-type]
    clock.ledger = []
    clock.out[1] = 5.0  # still sends something
    src, dst = np.array([0, 2]), np.array([1, 3])
    assert clock.ping(src, dst, 1000.0) == pytest.approx(3.0) and clock.latest_s == pytest.approx(6.0)
    conserves(clock.ledger, clock.costs)
    assert sum(use.num_bytes for use in clock.ledger if use.way == "out") == 4 * 1000
    for ports in (clock.out, clock.into):
        ports[2] = busy = max(*clock.out, *clock.into) + 10
        underway, *_ = clock.begin_collective("all_reduce", 1000.0)
        assert underway.ready.tolist() == pytest.approx([busy + clock.costs.all_reduce_s(4, 1000.0)] * 4)
    again = Clock(4, None, clock.costs)  # type: ignore[arg-type]
    again.load_state(clock.state())
    assert np.array_equal(again.state(), clock.state()) and clock.into.all()


@pytest.mark.parametrize("name", ["allreduce", "sgp", "wagma", "relaysgd"])
def test_a_model_that_the_cluster_describes_has_the_precision_of_the_run(start, tmp_path: Path, name: str) -> None:
    overrides = [*method(name, tmp_path), "cluster=even", "cluster.num_parameters=25559081", "evaluation.initial=false"]
    run, config = start(*overrides, f"steps={STEPS}"), configure(*overrides)
    assert run.facts["simulated_s"] == pytest.approx(alone(config).simulated_s, rel=1e-12)
    wider = alone(configure(*overrides, "precision=fp64"))
    if name == "allreduce":
        n, row_s = 5, 8 * 25559081 * 0.8e-9
        assert wider.simulated_s == pytest.approx(STEPS * (0.16 + 2 * (n - 1) * (5e-5 + row_s / n)), rel=1e-12)


def test_leaves_of_a_star_wait_for_its_center_and_overlapped_messages_travel_during_the_gradient() -> None:
    settings = ["task=quadratics", "task.dimension=40", "num_workers=6", *EVEN, *SLOW]
    ledger: list[Use] = []
    ends = 1 + 1e-4 + 5 * 40 * 6.4e-3
    star = alone(configure("algo=dpsgd", "topology=star", *settings), ledger, steps=1)
    assert star.simulated_s == pytest.approx(ends)
    assert min(use.ends for use in ledger if use.worker == 5 and use.way == "into") == pytest.approx(ends)
    chain = ["algo=relaysgd", "topology=chain", *settings]
    plain, overlapped = (alone(configure(*chain, f"algo.overlap={word}")).simulated_s for word in ("false", "true"))
    assert overlapped == pytest.approx(STEPS * 1.0) and plain == pytest.approx(STEPS * (1 + 1e-4 + 2 * 40 * 6.4e-3))


@pytest.mark.parametrize("settings", [
    ["algo=relaysgd", "topology=chain", "algo.overlap=true"],
    ["algo=streaming_diloco", "algo.period_steps=4", "algo.fragments=2", "algo.delay_steps=1"],
    ["algo=dpsgd", "topology=one_peer_exponential", "cluster.links.workers_per_machine=2",
     "cluster.links.between_latency_s=0", "cluster.links.between_bandwidth_gbps=1e-5",
     "cluster.links.shared_gbps=1e-5", "cluster.compute.sigma=1.5", "cluster.compute.mean_s=0.1",
     "cluster.num_parameters=200"],
])  # fmt: skip
def test_a_checkpoint_has_the_messages_in_flight(start, settings: list[str]) -> None:
    settings = [
        *CLUSTERS["slow network"],
        *settings,
        "task=quadratics",
        "num_workers=6",
        "steps=9",
        "evaluation.every_epochs=1",
    ]
    whole = start(*settings, directory="whole")
    for step in (1, 2, 5):
        assert start(*settings, "checkpoint_every_s=0", interrupt_at=step).status == "interrupted"
    on = start(*settings, "checkpoint_every_s=0").facts
    assert [on[fact] for fact in ("simulated_s", "simulated_shares", "bytes_sent")] == [
        whole.facts[fact] for fact in ("simulated_s", "simulated_shares", "bytes_sent")
    ]


def test_a_slower_machine_computes_and_sends_more_slowly(tmp_path: Path) -> None:
    lines = ["0,0,1,8e-6,8e-6", "0,3,2,4e-6,8e-6", "1,0,1,8e-6,8e-6"]  # 1000 bytes a second; from 3 s on half of it
    (tmp_path / "devices.csv").write_text("\n".join(["worker,seconds,slowdown,up_gbps,down_gbps", *lines]))
    settings = [
        *EVEN,
        "cluster.links.latency_s=0",
        "cluster.links.copy_gbps=inf",
        f"cluster.devices={tmp_path / 'devices.csv'}",
    ]
    config = configure(
        "algo=dpsgd", "topology=chain", "task=quadratics", "task.dimension=250", "num_workers=2", *settings
    )
    # 2000 bytes leave from 1 s on: until 3 s; then a gradient takes 2 s, and the row 4 s
    assert [alone(config, steps=steps).simulated_s for steps in (1, 2)] == [pytest.approx(3.0), pytest.approx(9.0)]


def test_a_fast_beginning_of_a_machine_swallows_nothing_later(tmp_path: Path) -> None:
    lines = [f"{i},0,1,1e12,1e12\n{i},100,1,1e-3,1e-3" for i in range(2)]
    (tmp_path / "devices.csv").write_text("\n".join(["worker,seconds,slowdown,up_gbps,down_gbps", *lines]))
    links = Links(latency_s=0.0, copy_gbps=math.inf)
    device = LinkCosts(links, 2, str(tmp_path / "devices.csv")).devices[0]  # type: ignore[index]
    assert device.ends("out", 100.0, 125_000.0) == pytest.approx(101.0, rel=1e-12)


HEAD = "worker,seconds,slowdown,up_gbps,down_gbps\n"
WRONG = {
    "worker,seconds\n": f"has no header: start it with {HEAD.strip()}",
    HEAD + "0,0,1,1,1\n": "has no line for worker 1",
    HEAD + "0,1,1,1,1\n": "line 2 .* begins at 1: .* begin at 0",
    HEAD + "0,0,1,1,1\n0,0,1,1,1\n": "line 3 .* begin after 0",
    HEAD + "0,0,0,1,1\n": "line 2 .* has '0' instead of a slowdown factor > 0",
    HEAD + "0,0,1,inf,1\n": "line 2 .* has 'inf' instead of a bandwidth",
    HEAD + "0,0,1,1,1\n1,0,1,1,1\n7,0,1,1,fast\n": "line 4 .* has 'fast'",
}


def test_devices_that_cannot_be_read_are_refused_with_their_line(tmp_path: Path) -> None:
    file, links = tmp_path / "devices.csv", Links(latency_s=0.0, copy_gbps=math.inf)
    for text, says in WRONG.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=says):
            LinkCosts(links, 2, str(file))
    with pytest.raises(ConfigError, match=r"bandwidth_gbps=1\.0 has no effect with cluster.devices"):
        LinkCosts(replace(links, bandwidth_gbps=1.0), 2, str(file))
