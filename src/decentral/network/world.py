"""Where a run happens: this process among the others, and its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from decentral.network.presence import Calls


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, with one device. With size > 1, or under torchrun, the process group is initialised."""

    rank: int
    size: int
    device: torch.device
    distributed: bool = False
    calls: Calls | None = None
    """Where the ranks of a script on one host say what they are about to do."""

    @property
    def leader(self) -> bool:
        """Whether this is the process that writes the results and speaks."""
        return self.rank == 0

    @property
    def blind(self) -> bool:
        """Whether there are other ranks, and no way to see what they are about to do without a message."""
        return self.size > 1 and self.calls is None

    def announce(self, text: str, kind: str | None = None) -> None:
        """Say what this rank is about to do with all the others, who do the same, or the same kind of thing if given.

        Raises ConfigError if one is at something else.
        """
        if self.calls is not None:
            self.calls.announce(text, kind)

    def agree(self, value: int) -> int:
        """The leader's value, on every process."""
        if not self.distributed:
            return value
        shared = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(shared, src=0)
        return int(shared.item())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether some process has set it: the same answer everywhere."""
        return tuple(bool(flag) for flag in self.largest(*flags))

    def largest(self, *values: int) -> tuple[int, ...]:
        """For each value, the largest that some process has: the same answer everywhere."""
        if not self.distributed:
            return values
        shared = torch.tensor(values, dtype=torch.int32, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return tuple(shared.tolist())

    def collect(self, content: bytes) -> list[bytes]:
        """What each process gives, which has the same length on all of them, by rank."""
        if not self.distributed:
            return [content]
        ours = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)
        shared = [torch.empty_like(ours) for _ in range(self.size)]
        dist.all_gather(shared, ours)
        return [part.cpu().numpy().tobytes() for part in shared]

    def collect_any(self, content: bytes) -> list[bytes]:
        """The same for any lengths. Nothing is unpickled: what comes over a network may come from anybody."""
        (longest,) = self.largest(len(content))
        packed = self.collect(len(content).to_bytes(8, "big") + content.ljust(longest, b"\0"))
        return [each[8 : 8 + int.from_bytes(each[:8], "big")] for each in packed]

    def barrier(self) -> None:
        """Wait for all processes."""
        self.any(False)
