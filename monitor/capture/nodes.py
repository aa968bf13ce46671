"""Who this process is among those that train together: rank, world size, node. Asks the frameworks that are loaded
already and loads none."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator

RANK_VARIABLES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
"""Set by torchrun, Slurm and Open MPI before the script starts, so before any framework can be asked."""

WORLD_VARIABLES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
HOROVOD_MODULES = ("horovod.torch", "horovod.tensorflow", "horovod.keras")


def rank_and_world() -> tuple[int | None, int | None]:
    """Return this process's rank and how many processes there are, None where nobody knows."""
    try:
        found = next(frameworks_say(), None)
    except (AttributeError, RuntimeError, ValueError):
        found = None  # a framework that is half imported, or is being shut down
    if found is not None:
        return found
    return first_number(RANK_VARIABLES), first_number(WORLD_VARIABLES)


def frameworks_say() -> Iterator[tuple[int, int]]:
    """Ask torch.distributed and Horovod where they are loaded and have been initialized."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        yield int(distributed.get_rank()), int(distributed.get_world_size())
    for name in HOROVOD_MODULES:
        horovod = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            yield int(horovod.rank()), int(horovod.size())


def first_number(variables: tuple[str, ...]) -> int | None:
    """Return the first variable that holds a number."""
    for variable in variables:
        text = os.environ.get(variable, "")
        if text.isdecimal():
            return int(text)
    return None


def default_node() -> str:
    """Name this process as the original does: rank, or else process id, and host; `_` becomes `-`."""
    rank, _ = rank_and_world()
    return f"{os.getpid() if rank is None else rank}-{socket.gethostname()}".replace("_", "-")
