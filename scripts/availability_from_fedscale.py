"""Make a file for `availability=trace` of FedScale's trace of smartphones:

    python scripts/availability_from_fedscale.py client_behave_trace availability.csv --workers 64 --hours 48

The trace (github.com/SymbioticLab/FedScale, benchmark/dataset/data/device_info/client_behave_trace) is a pickle:
client -> {active: [seconds], inactive: [seconds], finish_time: seconds, ...}. A client is there from each time in
`active` to the one in `inactive`, and begins anew after `finish_time`. A pickle can hold code: this reads none but
dictionaries, lists, numbers and texts.
"""

from __future__ import annotations

import argparse
import math
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from decentral.randomness import numpy_generator


class _Plain(pickle.Unpickler):
    """Finds no classes and no functions, without which nothing in a pickle can be called."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f"it asks for {module}.{name}, and only plain numbers, texts, lists and dictionaries are read")


def read(path: Path) -> dict[Any, Any]:
    """What the pickle holds. Raises ValueError, and executes nothing."""
    try:
        with path.open("rb") as file:
            found = _Plain(file).load()
    except (pickle.UnpicklingError, EOFError, ArithmeticError, AttributeError, LookupError, TypeError) as error:
        raise ValueError(f"it is no such pickle ({type(error).__name__}: {error})") from error
    if type(found) is not dict or not found:
        raise ValueError("it is no dictionary of clients")
    return found


def sessions(client: Any, until_s: float) -> Iterator[tuple[float, float]]:
    """When a client is there, up to a time: joined where two touch. Raises ValueError for what says no such thing."""
    numbers: list[Any] = []
    if type(client) is dict and type(client.get("active")) is type(client.get("inactive")) is list:
        numbers = [client.get("finish_time"), *client["active"], *client["inactive"]]
    if not numbers or any(type(one) not in (int, float) or not 0 <= one < math.inf for one in numbers):
        raise ValueError("has no active, inactive and finish_time in seconds")
    period, pairs = numbers[0], sorted(zip(client["active"], client["inactive"], strict=False))
    if period < 1 or len(client["active"]) != len(client["inactive"]):
        raise ValueError("has no finish_time, or not as many active as inactive times")
    last: tuple[float, float] | None = None
    for cycle in range(math.ceil(until_s / period)):
        for begins, ends in pairs:
            begins, ends = (min(cycle * period + min(one, period), until_s) for one in (begins, ends))
            if last is not None and begins <= last[1] and begins < ends:
                last = last[0], max(ends, last[1])
            elif begins < ends:
                if last is not None:
                    yield last
                last = begins, ends
    if last is not None:
        yield last


def converted(clients: dict[Any, Any], workers: int, seed: int, until_s: float, speed: float) -> str:
    """The CSV of so many clients, which are drawn. Raises ValueError for what cannot be one."""
    if not 1 <= workers <= len(clients):
        raise ValueError(
            f"--workers {workers} is out of range: use 1 to {len(clients)}, the number of clients in the trace"
        )
    drawn = numpy_generator(seed, "availability from FedScale").choice(len(clients), workers, replace=False)
    names, lines = list(clients), ["worker,from_s,to_s"]
    for worker, place in enumerate(drawn.tolist()):
        try:
            times = list(sessions(clients[names[place]], until_s))
        except ValueError as error:
            raise ValueError(f"its client {names[place]!r} {error}") from error
        lines += [f"{worker},{begins / speed!r},{ends / speed!r}" for begins, ends in times]
    return "\n".join(lines) + "\n"


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("trace", type=Path, help="FedScale's file client_behave_trace")
    parser.add_argument("output", type=Path, help="the CSV file to write")
    parser.add_argument("--workers", type=int, required=True, help="how many clients to draw")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--hours", type=float, default=48.0, help="how much of the trace; it begins anew as it ends")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the trace in a simulated second")
    given = parser.parse_args()
    if not (0 < given.hours < math.inf and 0 < given.speed < math.inf):
        parser.error("--hours and --speed have to be above 0")
    try:
        text = converted(read(given.trace), given.workers, given.seed, 3600 * given.hours, given.speed)
    except (OSError, ValueError) as error:
        sys.exit(f"{given.trace} cannot be converted: {error}.")
    given.output.write_text(text)
    print(
        f"wrote {given.output}: availability=trace availability.path={given.output} num_workers={given.workers} "
        f"cluster=... (availability.cycle={3600 * given.hours / given.speed!r} repeats it)"
    )


if __name__ == "__main__":
    main()
