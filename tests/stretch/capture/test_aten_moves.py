"""What sees or moves elements: views where no runtime moves anything."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - torch may be missing

from stretch.capture.exported import capture_exported  # noqa: E402

pytestmark = pytest.mark.torch

IMAGE, TOKENS = (1, 6, 8, 8), (1, 64, 6)


class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x.relu())


def kinds(function, shape):
    graph = capture_exported(Net(function), shape)
    assert tuple(graph.by_name[graph.output].shape) == tuple(Net(function)(torch.zeros(shape)).shape)
    return [f"{op.attrs['kernel']}:{op.attrs['variant']}" if op.kind == "opaque" else op.kind for op in graph.ops[2:]]


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (lambda x: x.flatten(2).transpose(1, 2), IMAGE, ["view"]),
        (lambda x: x.transpose(1, 2).reshape(1, 6, 8, 8), TOKENS, ["view"]),
        (lambda x: x.permute(0, 2, 3, 1), IMAGE, ["view"]),
        (lambda x: x.transpose(1, 2), TOKENS, ["copy:permute"]),
        (lambda x: x.permute(0, 3, 2, 1), IMAGE, ["copy:permute"]),
        (lambda x: x.reshape(1, 2, 3, 64).unsqueeze(0).squeeze(0).contiguous(), IMAGE, ["view"]),
        (lambda x: x.flatten(1), IMAGE, ["flatten"]),
        (lambda x: x.expand(4, 6, 8, 8), IMAGE, ["view"]),
        (lambda x: x[:, 2:5], IMAGE, ["slice"]),
        (lambda x: x[:, -2:], IMAGE, ["slice"]),
        (lambda x: x[:, 0], TOKENS, ["copy:slice"]),
        (lambda x: x[:, ::2], IMAGE, ["copy:slice"]),
        (lambda x: x[..., 1:5], IMAGE, ["copy:slice"]),
        (lambda x: torch.cat([*x.chunk(3, 1)], 1), IMAGE, ["slice", "slice", "slice", "concat"]),
        (lambda x: torch.cat([x, x], 2), IMAGE, ["copy:concat"]),
        (lambda x: torch.cat([torch.zeros(1, 1, 6), x], 1), TOKENS, ["copy:concat"]),
        (lambda x: torch.stack(x.unbind(1), 1), TOKENS, ["copy:slice"] * 64 + ["copy:stack"]),
        (lambda x: nn.functional.pad(x, (1, 2, 3, 4)), IMAGE, ["pad"]),
        (lambda x: nn.functional.pad(x, (1, 1), mode="reflect"), TOKENS, ["copy:pad"]),
        (lambda x: x.roll((1, 1), (2, 3)), IMAGE, ["copy:roll"]),
    ],
)
def test_moves_are_views_or_copies(function, shape, expected):
    assert kinds(function, shape) == expected
