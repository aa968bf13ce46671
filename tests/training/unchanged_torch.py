"""A script that knows nothing of capture."""

import sys

import torch


def in_forward() -> None: ...


class Network(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs):
        in_forward()
        return self.layer(inputs)


if __name__ == "__main__":
    network, loss_of = Network(), torch.nn.MSELoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss_of(network(torch.randn(8, 4)), torch.zeros(8, 1)).backward()
        optimizer.step()
    sys.stdout.write(f"{sys.argv} {__name__} {__file__.rsplit('/', 1)[1]}\n")
    sys.exit(int(sys.argv[2]))
