"""Who is present when: `availability=`, a pure function of the seed and the time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from decentral.availability.availability import Availability, Schedule
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
def test_who_is_present_is_a_function_of_the_seed_and_the_time_which_its_record_replays(mode, tmp_path):
    known = component(mode)
    schedule = known.open(N, 3, STEPS)
    found = table(schedule)
    assert known.in_seconds == schedule.in_seconds
    assert (table(known.open(N, 3, STEPS), list(range(STEPS))[::-1]) == found).all(), "in another order"
    assert mode in ("none", "fixed", "fixed share") or (table(known.open(N, 4, STEPS)) != found).any()
    file = tmp_path / "availability.csv"
    file.write_text(schedule.record(STEPS * (0.37 if schedule.in_seconds else 1)))
    again = component("trace", path=str(file))
    assert again.in_seconds == known.in_seconds
    assert (table(again.open(N, 9, None)) == found).all()


def test_nobody_is_absent_unless_it_is_asked_for_and_then_it_is_another_run():
    usual = ["task=quadratics", "algo=dpsgd", "topology=ring"]
    there, away = compose(usual), compose([*usual, "availability=persistent"])
    assert "availability" not in identity(there) and "availability" in identity(away)
    assert run_id(away) not in (run_id(there), run_id(compose([*usual, "availability=half"])))
    assert run_id(away) == run_id(compose([*usual, "availability=flaky"]))
    import yaml

    older = yaml.safe_load(dump(there))
    del older["availability"]
    assert from_dict(older) == there


def test_seconds_need_a_cluster():
    usual = ["task=quadratics", "algo=dpsgd", "topology=ring", "availability=sessions"]
    with pytest.raises(ConfigError, match=r"availability=sessions goes by simulated seconds .* cluster=even"):
        compose(usual)
    compose([*usual, "cluster=even"])
