"""Steps of an optimiser that a GPU replays as a CUDA graph."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

#: Steps before the recording, in which libraries choose their kernels and the optimiser makes its state.
BEFORE = 3


class Replayed:
    """A step that reads and writes the same tensors each time.

    On a GPU it is recorded as a CUDA graph once it has run a few times, and replayed from then on: a network's thousand small kernels
    take less time than launching them one by one. Elsewhere it is called.

    Args:
        step: The step; every tensor that it reads stays where it is, and no number of it is looked at.
        device: Where it runs.
        generators: What it draws random numbers from, of that device.
    """

    def __init__(self, step: Callable[[], None], device: torch.device, generators: Sequence[torch.Generator] = ()) -> None:
        self._step, self._generators = step, generators
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        self._count = 0

    def __call__(self) -> None:
        """Take the step."""
        if self._graph is not None:
            self._graph.replay()
            return
        if self._stream is None:
            self._step()
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            self._step()
        torch.cuda.current_stream().wait_stream(self._stream)
        self._count += 1
        if self._count == BEFORE:
            self._graph = torch.cuda.CUDAGraph()
            for generator in self._generators:
                self._graph.register_generator_state(generator)
            with torch.cuda.graph(self._graph, stream=self._stream, capture_error_mode="thread_local"):
                self._step()


def scheduled_adam(parameters: Sequence[torch.Tensor], rate: float, **settings: Any) -> tuple[torch.optim.Adam, Callable[[float], None]]:
    """Adam whose learning rate can change between replayed steps, and what changes it."""
    device = parameters[0].device
    if device.type != "cuda":
        adam = torch.optim.Adam(parameters, rate, **settings)
        return adam, lambda value: adam.param_groups[0].update(lr=value)
    number = torch.tensor(rate, device=device)
    return torch.optim.Adam(parameters, number, fused=True, capturable=True, **settings), lambda value: number.fill_(value) and None
