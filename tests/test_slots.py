"""Which job may start: cores, and GPUs by what is free on them (the driver is played by the tests)."""

from __future__ import annotations

import pytest

from decentral.errors import ConfigError
from decentral.scheduling.job import Demand
from decentral.scheduling.slots import Seat, Slots

GPU = Demand(1, "cuda")
GIB = 1 << 30


class Machine:
    """GPUs of 10 GiB, a clock, and the memory that runs have taken."""

    def __init__(self, gpus: int = 1, **options) -> None:
        self.now = 0.0
        self.free = {str(gpu): 10 * GIB for gpu in range(gpus)}
        self.slots = Slots(16, list(self.free), free_bytes=lambda: dict(self.free), clock=lambda: self.now, **options)

    def start(self, demand: Demand = GPU):
        seat = self.slots.seat(demand, 1)
        return seat and (seat, self.slots.take(seat))

    def uses(self, started, gib: float) -> None:
        """A run has done its first step, and has taken so much."""
        seat, residents = started
        for gpu, resident in zip(seat.gpus, residents, strict=True):
            self.free[gpu] -= int(gib * GIB)
            resident.seen = True
        self.now += 2


def test_a_process_takes_a_core_and_gives_it_back():
    slots = Slots(2)
    one, two = slots.seat(Demand(), 9), slots.seat(Demand(2), 9)
    assert (one, two) == (Seat(1), Seat(2))
    taken = slots.take(one)
    assert slots.seat(Demand(2), 9) is None
    assert slots.seat(Demand(), 9) == Seat(1)
    slots.free(one, taken)
    assert slots.seat(Demand(2), 9) == Seat(2)


def test_the_cores_are_shared_out_between_jobs_that_leave_the_number_open():
    slots = Slots(8)
    assert [slots.seat(Demand(None), waiting).processes for waiting in (1, 2, 3, 8, 100)] == [8, 4, 2, 1, 1]
    slots.take(Seat(6))
    assert slots.seat(Demand(None), 1) == Seat(2)
    slots.take(Seat(2))
    assert slots.seat(Demand(None), 1) is None


def test_a_job_that_needs_more_than_there_is_runs_alone():
    slots = Slots(2)
    slots.take(Seat(1))
    assert slots.seat(Demand(4), 1) is None
    slots = Slots(2)
    slots.take(slots.seat(Demand(4), 1))
    assert slots.seat(Demand(), 1) is None


def test_the_first_run_on_a_gpu_is_alone_until_what_it_takes_has_been_seen():
    machine = Machine()
    first = machine.start()
    assert first is not None and machine.start() is None
    machine.uses(first, 3)
    assert machine.start() is not None


def test_a_run_that_says_nothing_is_believed_after_a_while():
    machine = Machine()
    machine.start()
    machine.free["0"] -= 3 * GIB
    machine.now = 19
    assert machine.start() is None
    machine.now = 21
    assert machine.start() is not None


def test_runs_share_a_gpu_until_its_memory_is_used_up():
    machine, runs = Machine(), 0
    while (started := machine.start()) is not None:
        machine.uses(started, 3)
        runs += 1
    assert runs == 3


def test_runs_that_were_just_started_count_as_large_as_the_largest_so_far():
    machine = Machine()
    machine.uses(machine.start(), 4)
    assert machine.start() is not None
    assert machine.start() is None, "6 GiB are free, but 4.4 of them are the second one's"


def test_the_memory_of_other_users_is_not_ours_to_give():
    machine = Machine()
    first = machine.start()
    machine.uses(first, 3)
    machine.free["0"] = 1 * GIB
    machine.now += 2
    assert machine.start() is None


def test_without_a_driver_that_tells_runs_are_alone_on_their_gpus():
    slots = Slots(16, ["0", "1"], clock=lambda: 1000.0)
    seats = []
    while (seat := slots.seat(GPU, 1)) is not None:
        slots.take(seat)
        seats.append(seat)
    assert [seat.gpus for seat in seats] == [("0",), ("1",)]


def test_the_user_may_say_how_many_runs_share_a_gpu():
    machine = Machine(gpus=2, runs_per_gpu=2)
    seats = []
    while (started := machine.start()) is not None:
        seats.append(started[0].gpus[0])
    assert sorted(seats) == ["0", "0", "1", "1"]


def test_a_run_of_several_processes_gets_as_many_gpus_and_no_gpu_twice():
    machine = Machine(gpus=4)
    assert machine.start(Demand(3, "cuda"))[0].gpus == ("0", "1", "2")
    assert machine.start(Demand(2, "cuda")) is None
    assert machine.start(Demand(1, "cuda"))[0].gpus == ("3",)


def test_the_emptiest_gpu_comes_first_and_a_certain_one_is_respected():
    machine = Machine(gpus=3)
    machine.free["0"] = GIB
    assert machine.slots.seat(GPU, 1).gpus == ("1",)
    assert machine.slots.seat(Demand(1, "cuda:2"), 1).gpus == ("2",)


def test_gpus_are_shared_out_between_jobs_that_leave_the_number_open():
    machine = Machine(gpus=4)
    assert [len(machine.slots.seat(Demand(None, "cuda"), waiting).gpus) for waiting in (1, 2, 9)] == [4, 2, 1]


def test_auto_is_a_gpu_where_there_is_one():
    assert Machine().slots.seat(Demand(1, "auto"), 1) == Seat(1, ("0",))
    assert Slots(4).seat(Demand(1, "auto"), 1) == Seat(1)


@pytest.mark.parametrize(
    ("gpus", "demand", "complaint"),
    [
        (1, Demand(8, "cuda"), "needs 8 GPUs, here is 1"),
        (1, Demand(2, "auto"), "needs 2 GPUs, here is 1"),
        (2, Demand(1, "cuda:3"), "device=cuda:3 is not there: this machine shows cuda:0 to cuda:1"),
        (4, Demand(2, "cuda:3"), "processes=2 with device=cuda:3 needs 2 GPUs, here is 1"),
        (0, Demand(None, "cuda"), "device=cuda needs a GPU, and this machine shows none"),
    ],
)
def test_a_job_whose_gpus_are_not_there_is_refused_however_full_the_machine_is(gpus, demand, complaint):
    machine = Machine(gpus)
    for _ in range(2):
        with pytest.raises(ConfigError, match=complaint):
            machine.slots.seat(demand, 1)
        machine.start(Demand(1, "cpu"))


def test_a_gpu_is_measured_anew_when_runs_end():
    machine = Machine()
    first = machine.start()
    machine.uses(first, 6)
    assert machine.start() is None
    machine.free["0"] = 10 * GIB
    machine.slots.free(*first)
    assert machine.start() is not None
