"""Real training with PyTorch on a CPU, with call counts known by construction. Runs under the frameworks' interpreter.

train_torch.py BASE CASE: prints what it did as JSON.
"""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from monitor.capture import Capture
from monitor.capture.torch import attach
from monitor.capture.workers import worker_init

STEPS = 6
OPTIONS: dict[str, Any] = {"node": "0-test", "overhead_share": 0}


def in_forward() -> None: ...


def in_backward() -> None: ...


def in_loader() -> None: ...


class Network(torch.nn.Module):
    """Two layers; its forward pass calls a function three times."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 8)
        self.second = torch.nn.Linear(8, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            for _ in range(3):
                in_forward()
        return self.second(torch.tanh(self.first(inputs)))


class Twice(Network):
    """Calls itself and its layers again inside its forward pass."""

    def forward(self, inputs: torch.Tensor, deeper: bool = True) -> torch.Tensor:
        outputs = super().forward(inputs)
        return outputs + self(inputs, deeper=False) if deeper else outputs


def made() -> tuple[Network, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = Network()
    return network, torch.optim.SGD(network.parameters(), lr=0.01), torch.randn(16, 4)


def step(model: Any, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, passes: int = 1) -> None:
    optimizer.zero_grad()
    for _ in range(passes):
        loss = model(inputs).pow(2).mean()
        for _ in range(5):
            in_backward()
        loss.backward()
    optimizer.step()


def plain(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    capture = attach(network, optimizer, base=base, **OPTIONS)
    for number in range(STEPS):
        step(network, optimizer, inputs)
        if number % 3 == 2:
            network.eval()
            with torch.no_grad():
                network(inputs)
            network.train()
    capture.close()
    return {}


def accumulated(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    attach(network, optimizer, base=base, **OPTIONS)
    for _ in range(STEPS):
        step(network, optimizer, inputs, passes=4)
    return {}


def without_optimizer(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    attach(network, base=base, **OPTIONS)
    for _ in range(STEPS):
        step(network, optimizer, inputs)
    return {}


def twice(base: str) -> dict[str, Any]:
    _, _, inputs = made()
    network = Twice()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    attach(network, optimizer, base=base, **OPTIONS)
    for _ in range(STEPS):
        step(network, optimizer, inputs)
    return {}


def compiled(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    model = torch.compile(network, backend="eager")
    attach(model, optimizer, base=base, **OPTIONS)
    for _ in range(STEPS):
        step(model, optimizer, inputs)
    model.eval()
    model(inputs)
    return {}


def compiled_later(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    attach(network, optimizer, base=base, **OPTIONS)
    model = torch.compile(network, backend="eager", fullgraph=True)
    for _ in range(STEPS):
        step(model, optimizer, inputs)
    return {}


def broken(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    attach(network, optimizer, base=base, **OPTIONS)
    step(network, optimizer, inputs)
    try:
        network(torch.randn(3, 3))
    except RuntimeError:
        pass
    off = sys.getprofile() is None
    step(network, optimizer, inputs)
    return {"off": off}


def copied(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    attach(network, optimizer, base=base, **OPTIONS)
    average = copy.deepcopy(network)
    buffer = io.BytesIO()
    torch.save(network, buffer)
    for _ in range(STEPS):
        step(network, optimizer, inputs)
        average(inputs)
    loaded = torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    loaded(inputs)
    return {"has_ours": b"monitor.capture" in buffer.getvalue()}


class Loaded(TensorDataset):
    """Calls a function for each item."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        in_loader()
        return super().__getitem__(index)


def theirs(worker: int) -> None:
    torch.manual_seed(1000 + worker)


def workers(base: str) -> dict[str, Any]:
    network, optimizer, _ = made()
    capture = attach(network, optimizer, base=base, **OPTIONS)
    data = Loaded(torch.randn(64, 4))
    for context in ("fork", "spawn"):
        loader = DataLoader(
            data,
            batch_size=4,
            num_workers=2,
            multiprocessing_context=context,
            worker_init_fn=worker_init(capture.sibling(context), theirs, batches_per_span=4),
        )
        for (batch,) in loader:
            step(network, optimizer, batch)
    return {}


def scheduled(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    capture = Capture(base, every=3, **OPTIONS)
    attach(network, optimizer, capture=capture)
    for _ in range(STEPS):
        step(network, optimizer, inputs)
    return {}


def sampled(base: str) -> dict[str, Any]:
    network, optimizer, inputs = made()
    attach(network, optimizer, base=base, profiler="pyinstrument", **OPTIONS)
    for _ in range(STEPS):
        step(network, optimizer, inputs, passes=20)
    return {}


def distributed(base: str) -> dict[str, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    wrappers: dict[str, Callable[[Network], Any]] = {
        "ddp": DistributedDataParallel,
        "fully_shard": lambda network: fully_shard(network, mesh=mesh),
        "fsdp": lambda network: FullyShardedDataParallel(network, device_id=torch.device("cpu")),
    }
    for name, wrap in wrappers.items():
        _, _, inputs = made()
        network = wrap(Network())
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
        capture = attach(network, optimizer, base=f"{base}/{name}", overhead_share=0)
        for _ in range(STEPS):
            step(network, optimizer, inputs)
        capture.close()
        capture.finish()
    torch.distributed.destroy_process_group()
    return {"node": capture.node, "wrappers": list(wrappers)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(globals()[sys.argv[2]](sys.argv[1])) + "\n")
