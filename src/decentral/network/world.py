"""The process group of a run, this process's rank in it, and its device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from decentral.network.presence import Calls


@dataclass(frozen=True)
class World:
    """Process `rank` of `size`, with one device. With size > 1, or under torchrun, the process group is initialized."""

    rank: int
    size: int
    device: torch.device
    distributed: bool = False
    calls: Calls | None = None
    """The announced calls of a script's ranks on one host."""

    @property
    def leader(self) -> bool:
        """True for the process that writes the results and prints."""
        return self.rank == 0

    @property
    def blind(self) -> bool:
        """True if there are other ranks whose next calls are visible only by message."""
        return self.size > 1 and self.calls is None

    def announce(self, text: str, kind: str | None = None) -> None:
        """Announce the next collective call of this rank; others must make the same, or one of the same kind if given.

        Raises ConfigError if another rank makes a different call.
        """
        if self.calls is not None:
            self.calls.announce(text, kind)

    def agree(self, value: int) -> int:
        """Return the leader's value on every process."""
        if not self.distributed:
            return value
        shared = torch.tensor([value], dtype=torch.int64, device=self.device)
        dist.broadcast(shared, src=0)
        return int(shared.item())

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Return, for each flag, whether any process has set it; the same on all processes."""
        return tuple(bool(flag) for flag in self.largest(*flags))

    def largest(self, *values: int) -> tuple[int, ...]:
        """Return, for each value, the maximum over processes; the same on all processes."""
        if not self.distributed:
            return values
        shared = torch.tensor(values, dtype=torch.int32, device=self.device)
        dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return tuple(shared.tolist())

    def collect(self, content: bytes) -> list[bytes]:
        """Gather the contents of all processes, which have equal lengths, by rank."""
        if not self.distributed:
            return [content]
        ours = torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.device)
        shared = [torch.empty_like(ours) for _ in range(self.size)]
        dist.all_gather(shared, ours)
        return [part.cpu().numpy().tobytes() for part in shared]

    def collect_any(self, content: bytes) -> list[bytes]:
        """Gather contents of any lengths. Nothing is unpickled: network data is untrusted."""
        (longest,) = self.largest(len(content))
        packed = self.collect(len(content).to_bytes(8, "big") + content.ljust(longest, b"\0"))
        return [each[8 : 8 + int.from_bytes(each[:8], "big")] for each in packed]

    def barrier(self) -> None:
        """Wait for all processes."""
        self.any(False)
