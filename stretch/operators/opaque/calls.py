"""Calls of torch's own operators (ATen) as text, which compute an operator that belongs to no family.

The text may come from an untrusted file. Therefore only functions of `torch.ops.aten` are
allowed, by name and overload, that compute tensors from tensors. None of them writes into
its inputs, draws random numbers or reads anything else. Their arguments are
plain numbers, strings and lists, and their results are checked without data before
anything is computed.
"""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import torch
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode

from predictors.errors import StretchError, first_line, need
from predictors.operators.opaque import CALLS
from predictors.shapes import Attrs, Shape

#: Maximum number of calls of one operator.
MOST_CALLS = 16

#: Operators whose names torch begins with an underscore, and that are safe to call on any tensor.
_PRIVATE = frozenset(
    {
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_log_softmax", "_safe_softmax", "_softmax", "_to_copy", "_unsafe_index"),
        *("_unsafe_view", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training"),
        *("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"),
        *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_conj", "_weight_norm", "_euclidean_dist", "_cdist_forward"),
    }
)
#: Operators that draw random numbers only with dropout, which capturing refuses.
_DROPPING = frozenset({"scaled_dot_product_attention", "lstm", "gru", "rnn_tanh", "rnn_relu"})
#: Operators that return uninitialised elements, or access memory that is not theirs.
_UNWRITTEN = re.compile(r"empty|as_strided|resize|set_|from_|random|dropout|bernoulli|pin_memory|is_shared")

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z0-9_]+")


class CallTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts about a tensor that calls read."""

    dtype: str  # Data type, such as ``float32``.
    shape: tuple[int, ...]  # Shape at the batch size of the graph.
    learned: bool = False  # Whether the tensor is trained.


class Call(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One call of torch."""

    operator: str  # Name and overload in `torch.ops.aten`, such as ``roll.default``.
    #: Arguments by position. A tensor is ``{"read": i}``, ``{"constant": i}`` or ``{"call": i}``, the result of an earlier call, with
    #: ``"result": j`` for another one of several; a type is ``{"dtype": "float32"}``, a number that JSON lacks ``{"number": "inf"}``.
    arguments: tuple[Any, ...]
    options: dict[str, Any] = {}  # Arguments by name.
    result: int = 0  # Index of the used result among several.

    def referring(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> "Call":
        """Return the same call with `change` applied to its references to tensors, types and numbers that JSON lacks."""
        options = {key: _replace_reads(option, change) for key, option in self.options.items()}
        return msgspec.structs.replace(self, arguments=_replace_reads(self.arguments, change), options=options)


class Calls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The calls that compute one operator; the last one gives its result."""

    reads: tuple[CallTensor, ...]  # Inputs from other operators.
    constants: tuple[CallTensor, ...]  # Other inputs.
    calls: tuple[Call, ...]  # Calls in order.

    def text(self) -> str:
        """Return the calls as JSON."""
        return msgspec.json.encode(self).decode()


class CheckedCalls:
    """Checked calls, ready to be computed."""

    def __init__(self, calls: Calls, shape: Shape) -> None:
        if not 0 < len(calls.calls) <= MOST_CALLS or not calls.reads:
            raise StretchError(f"it has {len(calls.calls)} calls that read {len(calls.reads)} tensors")
        self.calls = calls
        self._operators = [find_operator(call.operator) for call in calls.calls]
        self.dtype = _check_without_data(self, shape)

    def __call__(self, reads: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the result for inputs at the batch size of the graph."""
        results: list[Any] = []
        values = {"read": reads, "constant": constants, "call": results, "result": [call.result for call in self.calls.calls]}
        for call, operator in zip(self.calls.calls, self._operators, strict=True):
            options = {key: _value(argument, values) for key, argument in call.options.items()}
            results.append(operator(*[_value(argument, values) for argument in call.arguments], **options))
        last: torch.Tensor = _select_result(results[-1], self.calls.calls[-1].result)
        return last

    def batched(self, reads: Sequence[torch.Tensor], constants: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the result for a multiple of the graph's batch; every tensor holds that many whole batches, one after another."""
        times = next((x.shape[0] // spec.shape[0] for x, spec in zip(reads, self.calls.reads, strict=True) if spec.shape), 1)
        if times == 1:
            return self(reads, constants)
        separate = [x.reshape(times, *spec.shape) for x, spec in zip(reads, self.calls.reads, strict=True)]
        try:
            mapped: Callable[..., torch.Tensor] = torch.func.vmap(lambda *batch_reads: self(batch_reads, constants))
            result = mapped(*separate)
        except RuntimeError:
            # torch cannot vectorise all operators, such as recurrent layers
            result = torch.stack([self([x[i] for x in separate], constants) for i in range(times)])
        return result.flatten(0, 1) if result.dim() > 1 else result


def calls_of(attrs: Attrs) -> Calls:
    """Return the calls that an opaque operator states."""
    need(CALLS in attrs, "an opaque operator was captured for predictions, and states no calls that compute it")
    return read_calls(str(attrs[CALLS]))


def read_calls(text: str) -> Calls:
    """Parse the calls from a text."""
    try:
        return msgspec.json.decode(text, type=Calls)
    except msgspec.MsgspecError as error:
        raise StretchError(f"its calls cannot be read: {error}") from error


def find_operator(name: str) -> OpOverload:
    """Return an operator that may be called."""
    need(bool(_NAME.fullmatch(name)), f"`{name}` is no name of an operator of torch")
    packet, _, overload = name.partition(".")
    need(not packet.startswith("_") or packet in _PRIVATE, f"it calls `{name}`, which is torch's own affair")
    try:
        operator = getattr(getattr(torch.ops.aten, packet), overload)
    except AttributeError as error:
        raise StretchError(f"this torch has no operator `{name}`", "use the version of torch that the network was captured with") from error
    if not isinstance(operator, OpOverload) or not computes(operator):
        raise StretchError(f"it calls `{name}`, which does more than compute tensors from tensors")
    return operator


def computes(operator: OpOverload) -> bool:
    """Return whether an operator returns tensors that depend only on its arguments, and changes nothing."""
    schema = operator._schema
    tensors = [a for a in schema.arguments if "Tensor" in str(a.type)]
    results = bool(schema.returns) and all("Tensor" in str(result_type.type) for result_type in schema.returns)
    name = schema.name.partition("::")[2]
    random = torch.Tag.nondeterministic_seeded in operator.tags and name not in _DROPPING
    return bool(tensors) and results and not schema.is_mutable and not random and not _UNWRITTEN.search(name)


def to_builtins(value: Any, tensor: Callable[[Any], dict[str, int] | None]) -> Any:
    """Convert an argument to JSON values.

    Args:
        tensor: Function that returns the reference to a tensor; None for any other value.
    """
    reference = tensor(value)
    if reference is not None:
        return reference
    if isinstance(value, list | tuple):
        return [to_builtins(element, tensor) for element in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float) and not math.isfinite(value):
        return {"number": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} is no number, word or list")


def type_of(name: str) -> torch.dtype:
    """Return a data type of torch by its name."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise StretchError(f"`{name}` is no type of torch")
    return dtype


def _value(argument: Any, values: dict[str, Any]) -> Any:
    if isinstance(argument, list | tuple):
        return [_value(element, values) for element in argument]
    if not isinstance(argument, dict):
        return argument
    if "call" in argument:
        number = argument["call"]
        return _select_result(values["call"][number], argument.get("result", values["result"][number]))
    ((key, content),) = argument.items()
    if key == "dtype":
        return type_of(content)
    return float(content) if key == "number" else values[key][content]


def _replace_reads(argument: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    if isinstance(argument, list | tuple):
        return tuple(_replace_reads(element, change) for element in argument)
    return change(argument) if isinstance(argument, dict) else argument


def _select_result(result: Any, number: int) -> Any:
    """Return one of several results of a call, or the only one."""
    return result if isinstance(result, torch.Tensor) else result[number]


def _check_without_data(replay: CheckedCalls, shape: Shape) -> torch.dtype:
    """Compute the calls on tensors without data, and return the data type of their result."""
    calls = replay.calls
    try:
        with FakeTensorMode(), torch.no_grad():
            reads, constants = (
                [torch.empty(spec.shape, dtype=type_of(spec.dtype)) for spec in specs] for specs in (calls.reads, calls.constants)
            )
            result = replay(reads, constants)
    except StretchError:
        raise
    except Exception as error:
        message = first_line(error)
        raise StretchError(f"its calls cannot be computed: {message}") from error
    need(tuple(result.shape) == tuple(shape), f"its calls give {tuple(result.shape)}, not {tuple(shape)}")
    return result.dtype
