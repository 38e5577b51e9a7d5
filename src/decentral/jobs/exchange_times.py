"""How long exchanges of rows between processes take, one after the other in the same processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from decentral.config.identity import component_identity
from decentral.config.schema import Config
from decentral.jobs.computation import BetweenProcesses, Computation
from decentral.store.lines import LineFile

BYTES_PER_MB = 1_000_000
_BYTES_PER_NUMBER = 4  # float32


class Timed(NamedTuple):
    """An exchange: its name, the run whose topology and transport it uses, and the network's verb, mix or mean."""

    name: str
    config: Config
    verb: str


@dataclass(frozen=True)
class ExchangeTimes(BetweenProcesses, Computation):
    """Times exchanges in turn, round after round, so that a slow moment of the machine is slow for all of them.

    There is a process for each of the `config.num_workers` workers. A round of an exchange begins when all processes
    are ready; its wall time ends when the last of them has what it waits for, and its CPU time is the sum over all of
    them. For each size (of one worker's row, in MB of 10^6 bytes) a line of times.jsonl has the times of all rounds, in
    seconds: {"megabytes": 44, "wall_s": {name: [...]}, "cpu_s": {name: [...]}}.
    """

    exchanges: tuple[Timed, ...] = ()
    megabytes: tuple[float, ...] = ()
    rounds: int = 10
    warm_up: int = 2

    folder: ClassVar[str] = "exchange_times"
    lines: ClassVar[str] = "times.jsonl"

    def parameters(self) -> dict[str, Any]:
        """The exchanges with their topologies and transports, the sizes and the rounds."""
        exchanges = [
            {
                "name": each.name,
                "verb": each.verb,
                "topology": component_identity(each.config.topology),
                "communication": component_identity(each.config.communication),
                "transport": each.config.network.transport.name,
            }
            for each in self.exchanges
        ]
        sizes = list(self.megabytes)
        return {"exchanges": exchanges, "megabytes": sizes, "rounds": self.rounds, "warm_up": self.warm_up}

    def work(self, lines: LineFile, stop: Callable[[], bool], show: Callable[[float, str], None]) -> bool:
        """One size after the other, each in new processes."""
        from decentral.jobs.timing.group import Turns, in_group
        from decentral.jobs.timing.verbs import Verb

        known = {line["megabytes"] for line in lines.known}
        for number, size in enumerate(self.megabytes):
            if size in known:
                continue
            if stop():
                return False
            show(number / len(self.megabytes), f"{size:g} MB")
            numbers = round(size * BYTES_PER_MB / _BYTES_PER_NUMBER)
            setups = {each.name: Verb(each.config, numbers, each.verb) for each in self.exchanges}
            (found,) = in_group(self.num_workers, [Turns(setups, self.rounds, warm_up=self.warm_up)])
            lines.append({"megabytes": size, "wall_s": found.wall.seconds, "cpu_s": found.cpu.seconds})
        return True

    def times(self) -> dict[float, dict[str, dict[str, list[float]]]]:
        """Size in MB -> 'wall_s' or 'cpu_s' -> name of the exchange -> seconds, one for each round."""
        return {float(line["megabytes"]): {"wall_s": line["wall_s"], "cpu_s": line["cpu_s"]} for line in self.found()}
