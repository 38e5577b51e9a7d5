"""The process group of a run."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module

import torch
import torch.distributed as dist

from decentral.config.schema import Config
from decentral.errors import ConfigError
from decentral.network.world import World
from decentral.runtime.devices import device_kind


def stay_on_this_machine() -> None:
    """Let gloo talk over the loopback, whatever the host is called and whichever networks it has."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")


def serve_store(size: int, timeout_s: float, address: str = "127.0.0.1", port: int = 0) -> dist.TCPStore:
    """A key-value store for the processes of this machine, and of no other, on a port that was free.

    With an `address`, which may be a name, for those that reach this machine there, on this port. By itself a TCPStore
    would listen at all addresses of the machine. Raises OSError if the address is not ours, or the port is taken.
    """
    family, kind, _, _, where = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()
        return dist.TCPStore(
            address,
            listening.getsockname()[1],
            size,
            is_master=True,
            timeout=timedelta(seconds=timeout_s),
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )


def store_of_torchrun(rank: int, size: int, timeout_s: float) -> dist.TCPStore:
    """The store at MASTER_ADDR and MASTER_PORT, which rank 0 serves unless torchrun does.

    Raises ConfigError if it cannot be served there.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        try:
            return serve_store(size, timeout_s, address, port)
        except OSError as error:
            raise ConfigError(
                f"MASTER_ADDR={address} MASTER_PORT={port} cannot be bound ({error.strerror}): give an address of the "
                "machine of rank 0, and a free port on it."
            ) from None
    timeout = timedelta(seconds=timeout_s)
    return dist.TCPStore(address, port, size, is_master=False, timeout=timeout, wait_for_workers=False)


@contextmanager
def joined(
    config: Config,
    rank: int,
    size: int,
    local_rank: int,
    attempt: int,
    run: str,
    store: dist.Store | None = None,
) -> Iterator[World]:
    """This process as number `rank` of a group of `size`: gloo on CPUs, nccl on GPUs.

    `attempt` counts from 0 and separates the attempts in the key-value store: without that, a group that is started
    again finds the addresses of the dead one. `run` is the run's id: processes that have different configurations
    refuse to work together.
    Without `store`, the one at MASTER_ADDR and MASTER_PORT is used, as torchrun provides it.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    timeout = timedelta(seconds=config.network.timeout_s)
    store = dist.PrefixStore(f"attempt{attempt}", store or store_of_torchrun(rank, size, config.network.timeout_s))
    kind = device_kind(config)
    device = (
        torch.device("cuda", local_rank % max(1, torch.cuda.device_count())) if kind == "cuda" else torch.device("cpu")
    )
    if kind == "cuda":
        torch.cuda.set_device(device)
    import_module("torch.distributed.nn.functional")  # later, its default arguments would keep the group for ever
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=size,
        timeout=timeout,
    )
    try:
        world = World(rank, size, device, distributed=True)
        if world.any(world.agree(int(run, 16)) != int(run, 16))[0]:
            raise ConfigError(
                "the processes of this run differ in configuration or data: start all with the same command, and "
                "seed the random draws of data=module:function."
            )
        world.barrier()
        yield world
        if world.leader:  # it may write longer than anybody waits for a message
            store.set("leader is done", "yes")
        else:
            store.wait(["leader is done"], timedelta(days=7))
        world.barrier()  # nobody leaves while another still talks
    finally:
        dist.destroy_process_group()
