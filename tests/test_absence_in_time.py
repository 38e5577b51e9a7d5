"""Workers that leave and come back in simulated time: who computes, waits and downloads, and when a step begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import Start
from decentral.algorithms.asynchronous import Team
from decentral.cluster.timeline import Timeline
from decentral.config.composition import compose
from decentral.config.prepared import prepare
from decentral.errors import ConfigError
from decentral.training.clock import without_training
from decentral.training.method import schedule_of
from decentral.training.timing import at_each_step, timed
from table import FREE

PROBLEM = (
    "task=quadratics",
    "task.dimension=4",
    "task.zeta2=10",
    "task.initial_distance=10",
    "task.noise=0",
    "lr=0.01",
)
COMPUTE_S = 1.0
LINKS = ("cluster.links.latency_s=0.1", "cluster.links.bandwidth_gbps=8e-7", "cluster.links.copy_gbps=inf")
"""A hundred bytes take a second, after .1 s."""
EVEN = ("cluster=machines", "cluster.compute.distribution=constant", f"cluster.compute.mean_s={COMPUTE_S:g}", *LINKS)
UNEVEN = (*EVEN[:1], "cluster.compute.distribution=shifted_pareto", "cluster.compute.floor_s=0.5", *LINKS,
          "cluster.compute.index=1.5", "cluster.compute.scale_s=0.5", "cluster.compute.cap_s=9")  # fmt: skip
SESSIONS = ("availability=sessions", "availability.present_s=20", "availability.away_s=8")
FAILURES = ("availability=failures", "availability.per_worker_hour=120", "availability.repair_s=9")


def stepper(*words: str, parameters: int = 100, total_steps: int = 100) -> Any:
    """What takes the steps of a method without training: rows of so many float32 numbers."""
    config = compose([*PROBLEM, "topology=ring", "num_workers=5", *words])
    times = config.cluster.gradient_times(config.num_workers, config.seed)
    return without_training(config, config.cluster, times, parameters, torch.float32, total_steps)


def advance(found: Any, steps: int) -> None:
    with torch.no_grad():
        for _ in range(steps):
            found.step()


def trace(folder: Path, *lines: str, unit: str = "s") -> list[str]:
    (folder / "given.csv").write_text("\n".join([f"worker,from_{unit},to_{unit}", *lines]))
    return ["availability=trace", f"availability.path={folder / 'given.csv'}"]


def absences(*given: list[int]) -> list[str]:
    return ["availability=fixed", f"availability.absences={json.dumps(given).replace(' ', '')}"]


METHODS = [
    ("dpsgd",),
    ("gradient_tracking",),
    ("relaysgd", "topology=dbt"),
    ("sgp", "topology=exponential"),
    ("allreduce",),
    ("diloco", "algo.period_steps=3"),
    ("choco", "compress=topk", "compress.keep=0.5"),
]


@pytest.mark.parametrize(("place", "method"), list(enumerate(METHODS)), ids=str)
def test_the_accounts_of_each_worker_add_up_to_its_time(place, method):
    """With sessions, failures and absences in steps in turn."""
    availability = (SESSIONS, FAILURES, ("availability=half",))[place % 3]
    found = stepper(*(f"algo={method[0]}", *method[1:]), *UNEVEN, *availability)
    clock, reached = found.net.traffic.clock, 0.0
    for _ in range(30):
        now = clock.now.copy()
        advance(found, 1)
        assert (clock.now >= now).all() and clock.latest_s >= reached
        reached = clock.latest_s
        np.testing.assert_allclose(sum(clock.accounts().values()), clock.now, rtol=1e-12)
    assert clock.accounts()["away"].min() >= 0 and 0 < clock.away_s.mean() < clock.now.mean()
    assert 0 < found.attendance.steps.sum() < 150
    np.testing.assert_array_equal(clock.compute_s > 0, found.attendance.steps > 0)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method[0])
def test_absent_workers_are_not_waited_for(method):
    words = (f"algo={method[0]}", *method[1:], "availability.on_return=stale")
    slow = ("cluster.stragglers.mode=fixed", "cluster.stragglers.workers=[4]", "cluster.stragglers.slowdown=50")
    away, four = stepper(*words, *EVEN, *slow, *absences([4, 0, None])), stepper(*words[:-1], *EVEN, "num_workers=4")
    advance(away, 12)
    advance(four, 12)
    clock = away.net.traffic.clock
    tree = method[0] == "relaysgd"  # which goes over the edges that are left of its trees
    assert tree or clock.now[:4] == pytest.approx(four.net.traffic.clock.now, rel=1e-12)
    assert clock.now.max() < 12 * (COMPUTE_S + 20) and clock.compute_s.tolist() == [12 * COMPUTE_S] * 4 + [0]
    assert tree or away.net.traffic.bytes_sent == four.net.traffic.bytes_sent


def test_a_collective_has_the_present_workers(tmp_path):
    found = stepper("algo=allreduce", *EVEN, *absences([1, 2, 4], [3, 2, 4]))
    clock, ends = found.net.traffic.clock, [0.0]
    for _ in range(6):
        advance(found, 1)
        ends.append(clock.latest_s)
    costs = clock.costs
    expected = [COMPUTE_S + costs.all_reduce_s(m, 400) for m in (5, 5, 3, 3, 5, 5)]
    download = 0.1 + 2 * 4.0  # both ask worker 0 for its model, whose port sends one after the other
    expected[4] += download
    assert np.diff(ends) == pytest.approx(expected)


@pytest.mark.parametrize(("on_return", "donors"), [("stale", 0), ("neighbor", 1), ("average", 2)])
def test_a_worker_that_comes_back_is_where_time_is_and_downloads(monkeypatch, on_return, donors):
    found = stepper("algo=dpsgd", *EVEN, *absences([2, 1, 3]), f"availability.on_return={on_return}")
    advance(found, 3)
    clock, begun, computing = found.net.traffic.clock, found.net.traffic.clock.latest_s, []
    gradient = clock.gradient
    monkeypatch.setattr(clock, "gradient", lambda: (computing.append(clock.now.copy()), gradient()))
    sent = found.net.traffic.bytes_sent
    advance(found, 1)
    later = 0.1 + donors * 4.0 if donors else 0.0  # all donors' rows through its one port
    sending = [4.0 * (donors > 0), 4.0 * (donors > 1)]  # until a row has left its port
    assert computing[0] == pytest.approx(begun + np.array([0, sending[0], later, sending[1], 0]))
    assert found.attendance.join_bytes == 400 * donors
    assert found.net.traffic.bytes_sent - sent == 400 * (donors + 10)
    first_step = COMPUTE_S + 0.1 + 2 * 4.0
    assert clock.away_s == pytest.approx([0, 0, begun - first_step, 0, 0])


def test_a_step_begins_with_the_last_present_worker(tmp_path):
    words = trace(tmp_path, "0,0,", "1,0,", "2,2.5,", "3,0,2.5", "4,3.5,3.6")
    found = stepper("algo=allreduce", *FREE, *words)
    seen = []
    for _ in range(5):
        advance(found, 1)
        seen.append((found.attendance.begun_s, np.flatnonzero(found.attendance.present).tolist()))
    assert seen == [(0.0, [0, 1, 3]), (1.0, [0, 1, 3]), (2.0, [0, 1, 3]), (3.0, [0, 1, 2]), (4.0, [0, 1, 2])]
    clock = found.net.traffic.clock
    assert clock.now.tolist() == [5.0, 5.0, 5.0, 4.0, 4.0] and clock.away_s.tolist() == [0, 0, 3, 1, 4]


def test_time_jumps_to_the_next_arrival(tmp_path):
    words = trace(tmp_path, "0,0,2", "1,0,2", "2,10,", "0,20,")
    found = stepper("algo=dpsgd", *FREE, *words)
    begun = []
    for _ in range(5):
        advance(found, 1)
        begun.append((found.attendance.begun_s, int(found.attendance.present.sum())))
    assert begun == [(0.0, 2), (1.0, 2), (2.0, 0), (10.0, 1), (11.0, 1)]
    assert found.net.traffic.clock.now.tolist() == [11.0, 11.0, 12.0, 11.0, 11.0]


def test_steps_pass_when_nobody_returns(tmp_path):
    found = stepper("algo=dpsgd", *FREE, *trace(tmp_path, "0,0,2"))
    advance(found, 5)
    assert found.net.traffic.clock.latest_s == 2.0 and found.attendance.steps.tolist() == [2, 0, 0, 0, 0]


@pytest.mark.parametrize("crash", [False, True])
def test_a_crash_costs_the_step_and_its_neighbors_notice_it_later(tmp_path, crash):
    words = trace(tmp_path, *(f"{i},0," for i in (0, 2, 3, 4)), "1,0,2.5")
    words += ["availability.crash=true", "availability.detect_s=7"] if crash else []
    found = stepper("algo=dpsgd", *FREE, *words)
    advance(found, 3)
    clock = found.net.traffic.clock
    assert found.attendance.steps[1] == (2 if crash else 3)
    assert clock.wait_s[0] == clock.wait_s[2] == (7 if crash else 0)
    assert clock.compute_s[1] == (2 if crash else 3)


def test_steps_that_belong_together_have_the_same_workers():
    found = stepper("algo=diloco", "algo.period_steps=4", *EVEN, *SESSIONS)
    seen = []
    for _ in range(40):
        advance(found, 1)
        seen.append(found.attendance.present.copy())
    periods = np.array(seen).reshape(10, 4, 5)
    assert (periods == periods[:, :1]).all() and (periods[1:, 0] != periods[:-1, 0]).any()


@pytest.mark.parametrize(
    ("method", "availability"),
    [
        pytest.param(METHODS[0], SESSIONS, id="dpsgd-sessions"),
        pytest.param(METHODS[5], FAILURES, id="diloco-failures", marks=pytest.mark.slow),
        pytest.param(METHODS[2], FAILURES, id="relaysgd-failures", marks=pytest.mark.slow),
    ],
)
def test_a_run_is_replayed_resumed_and_the_same_in_several_processes(start: Start, method, availability):
    words = [*PROBLEM, f"algo={method[0]}", "topology=ring", *method[1:], "num_workers=6", "steps=30", "trace=true"]
    words += [*UNEVEN, "save=none", "checkpoint_every_s=0", "cluster.links.bandwidth_gbps=1e-5"]
    whole = start(*words, *availability, directory="whole")
    assert whole.facts["availability"]["returns"] > 0
    assert start(*words, *availability, directory="parts", crash_at=15).status == "crashed"
    parts = start(*words, *availability, directory="parts")
    file = ["availability=trace", f"availability.path={whole.directory / 'availability.csv'}"]
    crash = ["availability.crash=true", "availability.least=1"] if availability is FAILURES else []
    again = start(*words, *file, *crash, directory="again")
    for run in (parts, again):
        np.testing.assert_array_equal(run.iterates, whole.iterates)
        for fact in ("simulated_s", "simulated_shares", "availability", "bytes_sent"):
            assert run.facts[fact] == whole.facts[fact], fact
    several = start(*words, *availability, processes=2, directory="several")
    np.testing.assert_allclose(several.iterates, whole.iterates, rtol=1e-12, atol=1e-12)
    assert several.facts["simulated_s"] == pytest.approx(whole.facts["simulated_s"], rel=1e-12)


def test_equal_speeds_and_a_free_network_change_nothing(start: Start):
    words = [
        *PROBLEM,
        "algo=gradient_tracking",
        "topology=ring",
        "num_workers=6",
        "steps=30",
        "trace=true",
        "save=none",
    ]
    words += ["availability=half"]
    plain, inside = start(*words, directory="plain"), start(*words, *FREE, directory="timed")
    np.testing.assert_array_equal(inside.iterates, plain.iterates)
    assert inside.facts["simulated_s"] == 30


@pytest.mark.parametrize("availability", [SESSIONS, FAILURES, ("availability=half",)], ids=["s", "crashes", "steps"])
def test_the_time_of_a_timeline_is_that_of_the_run_and_of_its_model(start: Start, availability):
    words = [*PROBLEM, "algo=dpsgd", "topology=ring", "num_workers=6", "steps=24", *UNEVEN, *availability, "save=none"]
    words += ["cluster.num_parameters=100"]
    found = start(*words)
    alone = timed(prepare(compose(words)), 24, 100)
    assert found.facts["simulated_s"] == alone.simulated_s == at_each_step(prepare(compose(words)))[0][-1]
    assert found.facts["bytes_sent"] == alone.bytes_sent
    assert alone.gradients == round(sum(found.facts["availability"]["attendance"]) * 24)
    assert set(found.facts["simulated_shares"]) == {"compute", "wait", "exchange", "away"}


def test_a_topology_that_may_not_exist_is_refused_at_the_start(start: Start):
    words = ("algo=dpsgd", "topology=hypercube", "num_workers=8", "steps=20", *FREE, *SESSIONS)
    with pytest.raises(ConfigError, match=r"3 workers present at some time"):
        start(*PROBLEM, *words)


def test_crashes_are_for_files_in_seconds(tmp_path):
    with pytest.raises(ConfigError, match=r"availability.crash=true needs a file in seconds"):
        compose([*PROBLEM, "algo=dpsgd", *trace(tmp_path, "0,0,5", unit="step"), "availability.crash=true"])


# -- workers that go on by themselves ----------------------------------------------------------------------------------

BY_THEMSELVES = ("availability.absent=induced", "availability.on_return=stale")
CRASHLESS = (*FAILURES, "availability.crash=false")
FREE_RUNNING = ["adpsgd", "a2cid2", "async_diloco", "async_push_sum"]


def timeline(name: str, *words: str, steps: int = 60) -> Timeline:
    config = compose([*PROBLEM, f"algo={name}", "topology=ring", "num_workers=6", *words, *BY_THEMSELVES])
    times, schedule = config.cluster.gradient_times(6, 0), schedule_of(config, steps)
    team = Team(config.rounds(), steps, 0, 1.0)
    programs = [config.algo.program(i, team) for i in range(6)]
    return Timeline(programs, times, config.cluster.costs(6), 400, 6 * steps, schedule=schedule)


@pytest.mark.parametrize("name", FREE_RUNNING)
def test_an_operation_of_an_absent_worker_begins_at_its_return(name, tmp_path):
    words = trace(tmp_path, *(f"{i},0," for i in range(5)), "5,0,3.5", "5,20.25,")
    found = timeline(name, *FREE, *words)
    found.run(until_s=20.0)
    assert found.drawn[5] == 4 and found.drawn[0] == 21  # the fourth, which has begun, is finished
    assert found.accounts()["away"].tolist() == [0, 0, 0, 0, 0, 16.0]
    found.run()
    assert found.completed == 360 and found.away_s == [0, 0, 0, 0, 0, 16.25]
    for i in range(6):
        spent = sum(float(seconds[i]) for seconds in found.accounts().values())
        assert found.now - 2.0 < spent <= found.now


def test_a_quorum_with_workers_that_never_return_is_an_error(start: Start, tmp_path):
    words = [*PROBLEM, "algo=async_diloco", "num_workers=6", "steps=20", "algo.period_steps=5", *FREE, *BY_THEMSELVES]
    words += [*trace(tmp_path, *(f"{i},0," for i in range(5)), "5,0,3.5"), "algo.rule=quorum"]
    with pytest.raises(ConfigError, match="No worker can continue after 5 s of simulated time"):
        start(*words, "algo.quorum=6", directory="six")
    assert start(*words, "algo.quorum=5", directory="five").status == "done"


@pytest.mark.parametrize(
    ("name", "availability"),
    [(name, CRASHLESS if name == "a2cid2" else SESSIONS) for name in FREE_RUNNING],
    ids=FREE_RUNNING,
)
def test_free_running_workers_come_and_go_in_training_as_in_time_alone(start: Start, name, availability):
    words = [*PROBLEM, f"algo={name}", "topology=ring", "num_workers=6", "steps=24", *UNEVEN, *availability]
    words += [*BY_THEMSELVES, "save=none", "checkpoint_every_s=0", "trace=true"]
    whole = start(*words, directory="whole")
    alone = timed(prepare(compose(words)), 24, 4)
    assert np.isfinite(whole.iterates).all()
    assert whole.facts["simulated_shares"]["away"][0] > 0 and alone.gradients == 144
    assert start(*words, directory="parts", crash_at=13).status == "crashed"
    parts = start(*words, directory="parts")
    file = ["availability=trace", f"availability.path={whole.directory / 'availability.csv'}", *BY_THEMSELVES]
    again = start(*[word for word in words if "availability" not in word], *file, directory="again")
    for run in (parts, again):
        np.testing.assert_array_equal(run.iterates, whole.iterates)
        for fact in ("simulated_s", "simulated_shares", "availability"):
            assert run.facts[fact] == whole.facts[fact]


def test_an_absent_partner_is_not_asked(tmp_path):
    found = timeline(
        "adpsgd", *FREE, *trace(tmp_path, "0,0,", "1,5.2,5.7", "5,6.2,6.7")
    )  # both neighbors of 0 are away
    found.run(gradients=20)
    assert found.sent_by_now() == (0, 0) and found.drawn == [19, 1, 0, 0, 0, 1]


def test_a_timeline_ends_with_its_last_gradient():
    found = timeline("adpsgd", *FREE, "availability=sessions", "availability.present_s=900", steps=5)
    assert not found.run() and found.completed == 30 and found.now < 12


def test_a_timeline_without_workers_ends(tmp_path):
    found = timeline("adpsgd", *FREE, *trace(tmp_path, "0,0,3"))
    assert not found.run() and found.now == 3.0


def test_waiting_for_all_ends_once_all_stay(start: Start, tmp_path: Path) -> None:
    words = [
        *PROBLEM,
        "algo=allreduce",
        "num_workers=2",
        "steps=8",
        "availability.wait=true",
        "availability.crash=true",
    ]
    given = trace(tmp_path, "0,0,10", "0,12,20", "0,21,", "1,0,5", "1,7,")
    found = start(*words, *given, "cluster=free", "cluster.compute.mean_s=2")
    assert found.facts["availability"]["attendance"] == [1.0, 1.0]
    # steps at 0-2, 2-4, (4-6 is lost) 7-9, (9-11 is lost) 12-14, 14-16, 16-18, 18-20, (20-22 is lost) 21-23
    assert found.facts["simulated_s"] == pytest.approx(23)
    shares = found.facts["simulated_shares"]
    assert "away" not in shares and shares["wait"][0] == pytest.approx(23 - 8 * 2)
    with pytest.raises(ConfigError, match="in simulated seconds"):
        start(*words, *trace(tmp_path, "0,0,", "1,0,", unit="step"))
