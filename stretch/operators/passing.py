"""Operators that return what they read at inference, in torch; other formats leave them out."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from predictors.shapes import Shape, number
from stretch.operators.capturing import Chain, Lowered, Refusal, TracedCall, calls, modules
from stretch.operators.lowerings import Lowering, lowerings


class StochasticDepth(nn.Module):
    """Drops its whole input in training, per sample (``row``) or per batch (``batch``)."""

    def __init__(self, p: float, mode: str) -> None:
        super().__init__()
        self.p, self.mode = p, mode

    def extra_repr(self) -> str:
        """Probability and mode."""
        return f"p={self.p}, mode={self.mode}"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Identity in evaluation; in training keeps the expectation."""
        if not self.training or self.p == 0:
            return x
        size = (x.shape[0] if self.mode == "row" else 1, *[1] * (x.dim() - 1))
        keep = torch.empty(size, dtype=x.dtype, device=x.device).bernoulli_(1 - self.p)
        return x * (keep / (1 - self.p) if self.p < 1 else keep)


@modules("Dropout", "Dropout2d")
def _dropout_module(m: Any, shape: Shape) -> list[Lowered]:
    return [("", "dropout", {"p": float(m.p)}, {})]


@calls(F.dropout, F.dropout2d)
def _dropout(call: TracedCall, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Chain:
    if training and p > 0:
        raise Refusal("it drops at random in evaluation too: pass training=self.training")
    return [x], "dropout", {"p": float(p)}


@modules("StochasticDepth", "DropPath")
def _stochastic_depth(m: Any, shape: Shape) -> list[Lowered]:
    if hasattr(m, "mode"):
        return [("", "stochastic_depth", {"p": float(m.p), "mode": m.mode}, {})]
    return [("", "stochastic_depth", {"p": float(m.drop_prob or 0.0), "mode": "row"}, {})]


@calls(methods=("contiguous", "clone"), classes=("Identity",))
def _identity(call: TracedCall, x: Any, *_: Any, **__: Any) -> Chain:
    return [x], "identity", {}


lowerings.register("dropout")(Lowering(lambda ins, a: nn.Dropout(number(a, "p")), any_order=True))
lowerings.register("stochastic_depth")(Lowering(lambda ins, a: StochasticDepth(number(a, "p"), str(a["mode"])), any_order=True))
lowerings.register("identity")(Lowering(lambda ins, a: nn.Identity(), any_order=True))
