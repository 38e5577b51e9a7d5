"""Who is present when: `availability=`, a pure function of the seed and the time."""

from __future__ import annotations

import itertools
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from decentral.availability.availability import Availability, Schedule
from decentral.cluster.stragglers import Delays, Stragglers
from decentral.cluster.stragglers import Mode as StragglersMode
from decentral.config.composition import compose
from decentral.config.identity import identity, run_id
from decentral.config.parsing import dump, from_dict
from decentral.errors import ConfigError
from decentral.registry import components

MODES: dict[str, dict[str, Any]] = {
    "none": {},
    "exactly": {"count": 5},
    "independent": {"probability": 0.4},
    "persistent": {"probability": 0.1, "residence_steps": 5},
    "diurnal": {"period_steps": 30},
    "diurnal in seconds": {"period_s": 60},
    "fixed": {"absences": [[3, 0, 20], [3, 40, None], [5, 10, 11]]},
    "fixed share": {"share": 0.25, "from_fraction": 0.5},
    "sessions": {"present_s": 6, "away_s": 4},
    "sessions lognormal": {"present_s": 6, "away_s": 4, "distribution": "lognormal"},
    "sessions weibull": {"present_s": 6, "away_s": 4, "distribution": "weibull"},
    "failures": {"per_worker_hour": 300, "repair_s": 4},
}
N, STEPS = 16, 700


def component(mode: str, **more: Any) -> Availability:
    cls: Any = components("availability")[mode.split()[0]]
    given = MODES.get(mode, {}) | more
    if "distribution" in given:
        given["distribution"] = type(cls().distribution)[given["distribution"]]
    made: Availability = cls(**given)
    made.check(N)
    return made


def table(schedule: Schedule, order: list[int] | None = None) -> np.ndarray:
    """In steps, or every .37 seconds: bool [STEPS, n]."""
    found = np.empty((STEPS, N), dtype=bool)
    for t in order or range(STEPS):
        found[t] = schedule.at(t * 0.37) if schedule.in_seconds else schedule.at_step(t)
    return found


@pytest.mark.parametrize("mode", MODES)
def test_availability_depends_on_seed_and_time_alone(mode, tmp_path):
    known = component(mode)
    schedule = known.open(N, 3, STEPS)
    found = table(schedule)
    assert known.in_seconds == schedule.in_seconds
    assert (table(known.open(N, 3, STEPS), list(range(STEPS))[::-1]) == found).all(), "in another order"
    assert mode in ("none", "fixed", "fixed share") or (table(known.open(N, 4, STEPS)) != found).any()
    file = tmp_path / "availability.csv"
    schedule.record(STEPS / 3), schedule.at(2.0) if schedule.in_seconds else schedule.at_step(2)
    file.write_text(schedule.record(STEPS * (0.37 if schedule.in_seconds else 1)))
    again = component("trace", path=str(file))
    assert again.in_seconds == known.in_seconds
    assert (table(again.open(N, 9, None)) == found).all()


def test_availability_is_part_of_the_identity():
    usual = ["task=quadratics", "algo=dpsgd", "topology=ring"]
    there, away = compose(usual), compose([*usual, "availability=persistent"])
    assert "availability" not in identity(there) and "availability" in identity(away)
    assert run_id(away) not in (run_id(there), run_id(compose([*usual, "availability=half"])))
    assert run_id(away) == run_id(compose([*usual, "availability=flaky"]))
    older = yaml.safe_load(dump(there))
    del older["availability"]
    assert from_dict(older) == there


def test_seconds_need_a_cluster():
    usual = ["task=quadratics", "algo=dpsgd", "topology=ring", "availability=sessions"]
    with pytest.raises(ConfigError, match=r"availability=sessions is defined in simulated seconds, .* cluster=even"):
        compose(usual)
    compose([*usual, "cluster=even"])


# -- what each mode is: with many workers, so that shares are those of the model --------------------------------------

MANY = 4000


def many(mode: str, workers: int = MANY, **more: Any) -> Schedule:
    cls: Any = components("availability")[mode]
    made: Schedule = cls(**more).open(workers, 1, 1000)
    return made


def stretches(schedule: Schedule, until: float) -> tuple[np.ndarray, np.ndarray]:
    """How long sessions are that begin after 0, and absences in between."""
    lines = [line.split(",") for line in schedule.record(until).splitlines()[1:]]
    there, away = [], []
    for _, own in itertools.groupby(lines, key=lambda line: line[0]):
        times = [(float(begins), float(ends or "inf")) for _, begins, ends in own]
        there += [ends - begins for begins, ends in times if begins > 0 and ends < math.inf]
        away += [after[0] - before[1] for before, after in itertools.pairwise(times)]
    return np.array(there), np.array(away)


def test_exactly_absents_a_fixed_number_equally_often():
    schedule = many("exactly", count=1000)
    found = np.array([schedule.at_step(t) for t in range(50)])
    assert (found.sum(axis=1) == MANY - 1000).all()
    assert found.mean(axis=0).std() == pytest.approx(math.sqrt(0.75 * 0.25 / 50), rel=0.1)


def test_independent_absences_have_their_probability_and_no_memory():
    schedule = many("independent", probability=0.3)
    found = np.array([schedule.at_step(t) for t in range(40)])
    assert found.mean() == pytest.approx(0.7, abs=0.005)
    assert (found[1:] & found[:-1]).mean() == pytest.approx(0.49, abs=0.006)


def test_a_markov_chain_is_stationary_from_the_start_and_stays_away_for_as_long_as_is_said():
    schedule = many("persistent", probability=0.05, residence_steps=8)
    assert [schedule.at_step(t).mean() for t in (0, 300, 800)] == pytest.approx([20 / 28] * 3, abs=0.025)
    there, away = stretches(many("persistent", 200, probability=0.05, residence_steps=8), 2000)
    assert there.mean() == pytest.approx(20, rel=0.03) and away.mean() == pytest.approx(8, rel=0.03)


def test_a_share_stands_for_the_probability_with_which_workers_are_absent_that_long():
    for mode in ("independent", "persistent"):
        schedule = many(mode, share=0.1)
        found = np.array([schedule.at_step(t) for t in range(0, 1000, 50)])
        assert found.mean() == pytest.approx(0.9, abs=0.01)
    with pytest.raises(ConfigError, match=r"share=0\.97 is out of reach with such short absences"):
        components("availability")["persistent"](share=0.97).check(16)


def test_absence_is_not_drawn_as_slowness_is():
    slow = Delays(Stragglers(mode=StragglersMode.persistent, probability=0.05, residence_steps=8), MANY)
    away = ~many("persistent", probability=0.05, residence_steps=8).at_step(20)
    both = (slow.slowness(1, 20, 1)[0] * away).mean()
    assert both == pytest.approx((8 / 28) ** 2, abs=0.02)


@pytest.mark.parametrize("unit", ["steps", "s"])
def test_the_diurnal_share_is_a_sine_and_all_take_turns(unit):
    schedule = many("diurnal", 1000, **{"lowest": 0.1, "highest": 0.8, f"period_{unit}": 80})
    asked = schedule.at if schedule.in_seconds else lambda when: schedule.at_step(int(when))
    found = np.array([asked(t) for t in range(80)])
    assert found.mean(axis=1)[[0, 20, 60]] == pytest.approx([0.45, 0.8, 0.1], abs=1e-3)
    assert found.any(axis=0).mean() > 0.95 and found.all(axis=0).mean() < 0.05
    assert (asked(80) == found[0]).all()


@pytest.mark.parametrize(
    ("settings", "stay"),  # E max(X - E X, 0) / E X, of those who are there at the start for as long as a mean session
    [
        ({}, math.exp(-1)),
        ({"distribution": "lognormal"}, math.erf(0.5 / math.sqrt(2))),
        ({"distribution": "weibull"}, (1 + math.sqrt(2)) * math.exp(-math.sqrt(2))),
    ],
    ids=["exponential", "lognormal", "weibull"],
)
def test_sessions_have_their_means_and_are_stationary_from_the_start(settings, stay):
    cls: Any = components("availability")["sessions"]
    if "distribution" in settings:
        settings = settings | {"distribution": type(cls().distribution)[settings["distribution"]]}
    sessions = cls(present_s=6, away_s=2, **settings)
    schedule = sessions.open(2000, 1, None)
    assert [schedule.at(t).mean() for t in (0, 0.5, 3, 50)] == pytest.approx([0.75] * 4, abs=0.025)
    first = [line.split(",") for line in schedule.record(6.0).splitlines() if line.split(",")[1] == "0.0"]
    assert np.mean([not ends for _, _, ends in first]) == pytest.approx(stay, abs=0.03)
    there, away = stretches(sessions.open(50, 1, None), 1500)
    assert there.mean() == pytest.approx(6, rel=0.05) and away.mean() == pytest.approx(2, rel=0.05)


def test_workers_fail_so_often_in_an_hour_and_are_repaired():
    there, away = stretches(many("failures", 100, per_worker_hour=36, repair_s=25), 20000)
    assert there.mean() == pytest.approx(100, rel=0.04) and away.mean() == pytest.approx(25, rel=0.04)


@pytest.mark.parametrize("name", ["late", "leaving"])
def test_a_quarter_joins_late_or_leaves_for_good(name):
    config = compose(["task=quadratics", "algo=dpsgd", "topology=ring", f"availability={name}"])
    schedule = config.availability.open(16, 0, 400)
    before, after = ([False], [True]) if name == "late" else ([True], [False])
    border = 100 if name == "late" else 200
    for step, there in ((0, before), (border - 1, before), (border, after), (5000, after)):
        assert schedule.at_step(step).tolist() == [True] * 12 + there * 4


def test_substitutes_are_drawn_in_each_step():
    schedule = component("independent", probability=0.9, least=5).open(N, 0, None)
    found = table(schedule)
    assert found.sum(axis=1).min() == 5 and (found.sum(axis=1) > 5).any()
    assert found.mean(axis=0).std() < 0.05
    bare = table(component("independent", probability=0.9).open(N, 0, None))
    assert (found[bare.sum(axis=1) >= 1] >= bare[bare.sum(axis=1) >= 1]).all(), "nobody is sent away"


# -- files -------------------------------------------------------------------------------------------------------------


def trace(tmp_path: Path, *lines: str, head: str = "worker,from_step,to_step", **more: Any) -> Availability:
    (tmp_path / "a.csv").write_text("\n".join((head, *lines)))
    return component("trace", path=str(tmp_path / "a.csv"), **more)


def test_intervals_of_a_file_are_half_open(tmp_path):
    schedule = trace(tmp_path, "0,0,5", "1,3,", "0,9,12", "0,12,13").open(N, 0, None)
    found = np.array([schedule.at_step(t) for t in range(20)])
    assert np.flatnonzero(found[:, 0]).tolist() == [0, 1, 2, 3, 4, 9, 10, 11, 12]
    assert np.flatnonzero(found[:, 1]).tolist() == list(range(3, 20))
    assert not found[:, 2:].any()


def test_a_file_is_repeated_and_nobody_may_be_there_until_the_next_arrival(tmp_path):
    schedule = trace(tmp_path, "0,1.5,2", "1,1.75,3", head="worker,from_s,to_s", cycle=4).open(N, 0, None)
    assert [np.flatnonzero(schedule.at(t)).tolist() for t in (0, 1.5, 1.75, 2, 3, 5.5, 7, 401.5)] == [
        *([], [0], [0, 1], [1], [], [0], [], [0])
    ]
    assert [schedule.next_arrival(t) for t in (0, 3, 3.5, 7)] == [1.5, 5.5, 5.5, 9.5]
    once = trace(tmp_path, "0,1.5,2", "1,1.75,3", head="worker,from_s,to_s").open(N, 0, None)
    assert [once.next_arrival(t) for t in (0, 3)] == [1.5, math.inf]


REFUSED = [
    (["0,0,5", "", "0,4,6"], {}, r"line 4 of availability.path=\S+ overlaps line 2 of .*worker 0"),
    (["0,0,", "0,4,6"], {}, "line 3 of .* overlaps line 2"),
    (["0,5,5"], {}, "line 2 of .* is empty, from 5 to 5"),
    (["0,5,4"], {}, "line 2 of .* from 5 to 4"),
    (["0,0,5", "16,0,5"], {}, "line 3 of .* has '16' .*0 to 15 with num_workers=16"),
    (["0,0,1.5"], {}, "line 2 of .* has '1.5' instead of the number of a step"),
    (["0,,5"], {}, "line 2 of .* has ''"),
    (["0,-1,5"], {}, "line 2 of .* has '-1'"),
    (["0,0"], {}, "line 2 of .* has 2 columns"),
    (
        ["0,0,5"],
        {"head": "worker,from_h,to_h"},
        "line 1 of .* is worker,from_h,to_h: use worker,from_s,to_s or",
    ),
    (["0,0,nan"], {"head": "worker,from_s,to_s"}, "line 2 of .* has 'nan'"),
    ([], {}, "no worker is ever present"),
    (["0,0,5"], {"cycle": 4}, "line 2 of .* ends after availability.cycle=4"),
    (["0,6,"], {"cycle": 4}, "line 2 of .* ends after availability.cycle=4"),
]


def test_an_invalid_file_is_refused_with_the_line(tmp_path):
    for lines, settings, message in REFUSED:
        with pytest.raises(ConfigError, match=message):
            trace(tmp_path, *lines, **settings)


@pytest.mark.parametrize(
    ("mode", "settings", "message"),
    [
        ("exactly", {"count": 16}, "availability.count=16 leaves fewer than availability.least=1 .* at most 15"),
        ("exactly", {"count": 10, "least": 7}, "use at most 9"),
        ("independent", {"probability": 1.0}, "availability.probability=1 is out of range; use a number > 0 and < 1"),
        ("independent", {"least": 17}, "availability.least=17 exceeds num_workers=16"),
        (
            "persistent",
            {"residence_steps": 0.5},
            "availability.residence_steps=0.5 is out of range; use a finite number >= 1",
        ),
        ("persistent", {"share": 0.1, "probability": 0.3}, "share=0.1 and .*probability=0.3 exclude each other"),
        ("diurnal", {"lowest": 0.9}, "availability.lowest=0.9 exceeds availability.highest=0.8"),
        ("fixed", {"absences": []}, "needs either availability.absences, .* or availability.share"),
        ("fixed", {"absences": [[3, 5]]}, r"availability.absences\[0\]=\[3, 5\] has the wrong form: use"),
        ("fixed", {"absences": [[16, 5, 6]]}, "names worker 16"),
        ("fixed", {"absences": [[3, 5, 9], [3, 8, 12]]}, r"absences\[1\].* overlaps availability.absences\[0\]"),
        ("fixed", {"absences": [[i, i, 90] for i in range(16)]}, "leaves 0 of 16 workers, fewer than .*least=1"),
        ("fixed share", {"from_fraction": 0.5, "to_fraction": 0.5}, "from_fraction=0.5 is not below"),
        ("sessions", {"sigma": 2.0}, "availability.sigma=2 needs availability.distribution=lognormal"),
        ("trace", {}, "availability=trace needs availability.path"),
        ("trace", {"path": "nowhere.csv"}, "availability.path=nowhere.csv is not a file"),
    ],
)
def test_invalid_settings_are_refused(mode, settings, message):
    with pytest.raises(ConfigError, match=message):
        component(mode, **settings)


def test_weights_are_those_of_an_induced_graph():
    weights: Any = component("persistent").weights  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match=r"availability.weights=keep needs availability.absent=induced"):
        component("persistent", weights=type(weights).keep)


def test_parts_of_a_run_need_its_length():
    with pytest.raises(ConfigError, match=r"availability.share needs the total number of steps"):
        component("fixed share").open(N, 0, None)


# -- FedScale's trace --------------------------------------------------------------------------------------------------

SCRIPT = Path(__file__).parents[1] / "scripts" / "availability_from_fedscale.py"
CLIENT = {"duration": 9, "active": [0, 50], "inactive": [20, 60], "finish_time": 100, "model": "Nexus"}


class Malicious:
    """Pickled, it writes a file where it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("open('written', 'w')",))


def convert(tmp_path: Path, content: bytes, *more: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "trace.pkl").write_bytes(content)
    words = [sys.executable, str(SCRIPT), "trace.pkl", "out.csv", "--workers", "2", *more]
    return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)


def test_a_trace_of_smartphones_becomes_ours(tmp_path):
    clients = {1: CLIENT, 2: CLIENT | {"active": [10], "inactive": [100], "finish_time": 100.0}}
    done = convert(tmp_path, pickle.dumps(clients), "--hours", "0.05", "--seed", "3")
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert sorted(line.partition(",")[2] for line in lines[1:]) == sorted(
        [*("0.0,20.0", "50.0,60.0", "100.0,120.0", "150.0,160.0"), *("10.0,100.0", "110.0,180.0")]
    )
    schedule = component("trace", path=str(tmp_path / "out.csv"), cycle=180.0).open(2, 0, None)
    assert schedule.at(55).all() and schedule.at(30 + 18000).sum() == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({1: Malicious(), 2: CLIENT}), "it asks for builtins.exec"),
        (pickle.dumps({1: CLIENT})[:-9], "it is no such pickle"),
        (b"no pickle", "it is no such pickle"),
        (pickle.dumps([1]), "it is no dictionary of clients"),
        (pickle.dumps({1: CLIENT}), "--workers 2 is out of range: use 1 to 1, the number of clients"),
        (pickle.dumps({1: CLIENT, 2: CLIENT | {"active": ["x", 3]}}), "client 2 has no active, inactive and"),
        (pickle.dumps({1: CLIENT, 2: CLIENT | {"inactive": [5]}}), "client 2 has no finish_time, or not as many"),
    ],
)  # fmt: skip
def test_what_is_no_trace_is_refused_and_nothing_in_it_is_carried_out(tmp_path, content, message):
    done = convert(tmp_path, content)
    assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "written").exists() and not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("mode", ["half", "sessions", "failures", "diurnal", "late"])
def test_from_until_on_everyone_is_present(mode: str) -> None:
    words = ["task=quadratics", "algo=dpsgd", "topology=ring", f"availability={mode}", "num_workers=6"]
    cluster = ["cluster=even"] if mode in ("sessions", "failures") else []
    usual = compose([*words, *cluster]).availability.open(6, 0, 400)
    ends = compose([*words, *cluster, "availability.until=60"]).availability.open(6, 0, 400)
    at = (
        (lambda schedule, when: schedule.at(when))
        if ends.in_seconds
        else (lambda schedule, when: schedule.at_step(when))
    )
    for when in range(60):
        assert (at(ends, when) == at(usual, when)).all()
    assert all(at(ends, when).all() for when in range(60, 90))
    lines = ends.record(90).splitlines()[1:]
    assert sum(line.endswith(",") for line in lines) == 6, "all are there at the end"
    if ends.in_seconds:
        assert ends.next_change(60) == math.inf and ends.complete(59.0, 5.0) <= 60


def test_until_leaves_the_ids_of_earlier_runs() -> None:
    words = ["task=quadratics", "algo=dpsgd", "topology=ring", "availability=half"]
    assert "until" not in identity(compose(words))["availability"]
    assert run_id(compose(words)) != run_id(compose([*words, "availability.until=60"]))


def test_workers_that_a_trace_does_not_name_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("worker,from_step,to_step\n0,0,\n2,5,\n")
    trace = components("availability")["trace"](path=str(file))
    (note,) = trace.notes(5)
    assert "no session of 3 of 5 workers (1, 3, 4)" in note
    file.write_text("worker,from_step,to_step\n0,0,\n1,5,\n")
    assert trace.notes(2) == []
