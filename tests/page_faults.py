"""What a block of 100 MB costs in page faults, each time it is asked for again."""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from decentral.store import Status

if TYPE_CHECKING:
    from decentral.config.prepared import Prepared
    from decentral.network.world import World

WARM_UP, TIMES = 20, 10


def count(run: Prepared, world: World) -> Status:
    """Writes how many faults a block costs to directory/RANK."""
    import torch

    def faults() -> int:
        torch.empty(25_000_000).fill_(1.0)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    before = [faults() for _ in range(WARM_UP)][-1]
    after = [faults() for _ in range(TIMES)][-1]
    (run.directory / str(world.rank)).write_text(str((after - before) / TIMES))
    return Status.done


if __name__ == "__main__":
    import page_faults
    from decentral.config.composition import compose
    from decentral.config.prepared import prepare
    from decentral.runtime.launch import in_processes

    folder, processes = sys.argv[1:]
    config = compose(["task=quadratics", "num_workers=2", "topology=ring", "device=cpu", f"processes={processes}"])
    in_processes(prepare(config, Path(folder)), page_faults.count)
