"""Calls of torch with what they read, while an opaque operator is put together."""

from typing import Any

import torch

from predictors.operators.opaque import CALLS
from predictors.shapes import Attr
from stretch.capture.aten_call import AtenStep, AtenValue
from stretch.opaque.calls import Call, Calls, CallTensor, plain


class CallRecorder:
    """Collects the tensors that calls read, and writes arguments as JSON has them."""

    def __init__(self) -> None:
        self._reads: list[AtenValue] = []
        self._constants: list[AtenValue] = []

    def __call__(self, argument: Any) -> Any:
        """An argument as JSON has it; raises ValueError if it is nothing that a call may have."""
        return plain(argument, self._place)

    def _place(self, argument: Any) -> dict[str, int] | None:
        if not isinstance(argument, AtenValue):
            return None
        there, key = (self._reads, "read") if argument.op else (self._constants, "constant")
        if not argument.op and argument.tensor is None:
            raise ValueError("is a tensor that is not known")
        same = (item is argument or (argument.op and (item.op, item.shape) == (argument.op, argument.shape)) for item in there)
        at = next((i for i, result in enumerate(same) if result), None)
        if at is None:
            there.append(argument)
            at = len(there) - 1
        return {key: at}

    def step(self, step: AtenStep, calls: tuple[Call, ...]) -> AtenStep:
        """An opaque operator that is computed by some calls with what was collected."""
        reads = tuple(CallTensor(_name(value.dtype), value.shape) for value in self._reads)
        tensors = [_finite(value.tensor) for value in self._constants if value.tensor is not None]
        constants = tuple(
            CallTensor(_name(tensor.dtype), tuple(tensor.shape), value.learned and tensor.is_floating_point())
            for tensor, value in zip(tensors, self._constants, strict=True)
        )
        weights = {f"constant_{i}": tensor for i, tensor in enumerate(tensors)}
        shapes: dict[str, Attr] = {key: tuple(tensor.shape) for key, tensor in weights.items()}
        attrs = {**step.attrs, CALLS: Calls(reads, constants, calls).text(), "weights": sum(t.numel() for t in tensors), **shapes}
        return AtenStep("opaque", attrs, tuple(self._reads), weights)


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """A mask of minus infinity as the lowest number of fp16, behind which a softmax gives the same zeros: files hold no infinity."""
    if not tensor.is_floating_point() or not tensor.isinf().any():
        return tensor
    most = torch.finfo(torch.float16).max
    return tensor.nan_to_num(nan=torch.nan, posinf=most, neginf=-most)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype or torch.float32).removeprefix("torch.")
