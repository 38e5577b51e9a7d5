"""Groups that change by a butterfly: every property that WAGMA-SGD relies on, and where its printed algorithm fails."""

from __future__ import annotations

import math

import numpy as np
import pytest

from decentral.errors import ConfigError
from decentral.topology.groups import (
    activation_children,
    check_groups,
    dimension,
    group,
    group_period,
    group_size_auto,
    grouping,
    partners,
    phases,
    versions_to_reach_all,
)

POWERS = [1 << n for n in range(11)]
CELLS = [(P, S) for P in POWERS for S in POWERS if S <= P]


def versions(P: int, S: int) -> list[int]:
    return [*range(group_period(P, S) + 1), 4095, 4096, 10**9 + 7]


@pytest.mark.parametrize(("P", "S"), CELLS)
def test_groups_have_the_right_size_and_partition_the_workers(P, S):
    for t in versions(P, S):
        groups = grouping(t, P, S)
        assert groups.shape == (P // S, S)
        assert sorted(groups.ravel().tolist()) == list(range(P))
        assert (np.diff(groups, axis=1) > 0).all() and (np.diff(groups[:, 0]) > 0).all()


@pytest.mark.parametrize(("P", "S"), [(P, S) for P, S in CELLS if P <= 64])
def test_a_worker_sees_the_same_group_as_its_members(P, S):
    for t in versions(P, S):
        groups = {tuple(members) for members in grouping(t, P, S).tolist()}
        for p in range(P):
            assert tuple(group(p, t, P, S)) in groups and p in group(p, t, P, S)
            for r, partner in enumerate(partners(p, t, P, S)):
                assert partners(partner, t, P, S)[r] == p and partner in group(p, t, P, S)


@pytest.mark.parametrize(("P", "S"), CELLS)
def test_the_period_is_the_smallest(P, S):
    n, k = int(math.log2(P)), int(math.log2(S))
    period = group_period(P, S)
    assert period == (n // math.gcd(n, k) if k else 1)
    first = phases(0, P, S)
    assert [t for t in range(1, period + 1) if phases(t, P, S) == first] == ([period] if n else [1])


@pytest.mark.parametrize(("P", "S"), [(P, S) for P, S in CELLS if P == 1 or S > 1])
def test_a_contribution_reaches_everybody_in_ceil_n_over_k_versions_and_no_sooner(P, S):
    needed = versions_to_reach_all(P, S)
    assert needed == (math.ceil(math.log2(P) / math.log2(S)) if P > 1 else 0)
    for start in range(group_period(P, S)):
        reached = {0}
        for t in range(start, start + needed):
            assert len(reached) < P
            bits = phases(t, P, S)
            for bit in bits:
                reached |= {p ^ (1 << bit) for p in reached}
        assert len(reached) == P


def test_the_examples_of_the_paper():
    assert grouping(0, 8, 4).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert grouping(1, 8, 4).tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert activation_children(1, -1, 4) == [0, 3]
    assert activation_children(0, dimension(1, 0), 4) == [2]
    assert [group_size_auto(P) for P in (1, 2, 4, 8, 16, 64, 256, 1024)] == [1, 2, 2, 4, 4, 8, 16, 32]


def test_fixed_groups_are_those_of_version_0():
    for t in (0, 1, 5):
        assert grouping(t, 8, 4, dynamic=False).tolist() == grouping(0, 8, 4).tolist()
        assert partners(5, t, 8, 4, dynamic=False) == partners(5, 0, 8, 4)
        assert group(5, t, 8, 4, dynamic=False) == [4, 5, 6, 7]


@pytest.mark.parametrize("P", [1, 2, 4, 8, 64, 1024])
def test_an_activation_reaches_every_worker_once_whoever_activates(P):
    for root in {0, 1 % P, P - 1, P // 3}:
        heard, waiting = [root], [(root, -1)]
        while waiting:
            worker, came_over = waiting.pop()
            children = activation_children(worker, came_over, P)
            heard += children
            waiting += [(child, dimension(worker, child)) for child in children]
        assert sorted(heard) == list(range(P))


def test_several_activators_miss_nobody_although_each_worker_forwards_only_the_first_call():
    P, draw = 32, np.random.default_rng(0)
    for _ in range(300):
        roots = draw.choice(P, size=int(draw.integers(1, 6)), replace=False).tolist()
        called: set[int] = set()
        waiting = [(root, -1) for root in roots]
        while waiting:
            worker, came_over = waiting.pop(int(draw.integers(len(waiting))))
            if worker not in called:
                called.add(worker)
                waiting += [(to, dimension(worker, to)) for to in activation_children(worker, came_over, P)]
        assert len(called) == P


@pytest.mark.parametrize(
    ("P", "S", "said"),
    [
        (12, 4, "num_workers=12 cannot be divided into groups that change by a butterfly: use a power of two, for "
         "example 8 or 16."),
        (0, 1, "use a power of two, for example 1 or 2."),
        (8, 3, "algo.group_size=3 is no size for groups of num_workers=8: use one of 1, 2, 4, 8."),
        (4, 8, "algo.group_size=8 is no size for groups of num_workers=4: use one of 1, 2, 4."),
        (4, 0, "algo.group_size=0 is no size"),
    ],
)  # fmt: skip
def test_other_sizes_are_refused_with_those_that_work(P, S, said):
    with pytest.raises(ConfigError) as error:
        check_groups(P, S)
    assert said in str(error.value)


def test_groups_of_one_never_hear_of_each_other():
    with pytest.raises(ConfigError, match="groups of 1 of num_workers=8 never hear of each other"):
        versions_to_reach_all(8, 1)


# -- Algorithm 1 as it is printed --------------------------------------------------------------------------------------


def as_printed(P: int, S: int, t: int) -> set[frozenset[int]]:
    """Lines 2 to 15; what a mask of P or more pairs a process with does not exist."""
    global_phases, group_phases = int(math.log2(P)), int(math.log2(S))
    mask, shift = 1, (t * group_phases) % global_phases
    group_of = {p: frozenset({p}) for p in range(P)}
    for _ in range(group_phases):
        mask <<= shift
        for p in range(P):
            q = p ^ mask
            if q in group_of and group_of[p] != group_of[q]:
                merged = group_of[p] | group_of[q]
                group_of |= dict.fromkeys(merged, merged)
        shift = (shift + 1) % global_phases
    return set(group_of.values())


def test_the_printed_algorithm_gives_other_groups_in_25_of_40_cases():
    wrong = {
        (P, S, t)
        for P, S in ((4, 4), (8, 4), (8, 8), (16, 4), (16, 8))
        for t in range(8)
        if as_printed(P, S, t) != {frozenset(members) for members in grouping(t, P, S).tolist()}
    }
    expected = {(P, 8, t) for P in (8, 16) for t in range(8)}
    expected |= {(8, 4, t) for t in range(8) if t not in (0, 3, 6)} | {(16, 4, t) for t in (1, 3, 5, 7)}
    assert wrong == expected and len(wrong) == 25


@pytest.mark.parametrize("P", [2, 4, 8, 16])
def test_the_printed_algorithm_is_right_for_pairs(P):
    for t in range(8):
        assert as_printed(P, 2, t) == {frozenset(members) for members in grouping(t, P, 2).tolist()}
