"""Any network as operators: traced where that is possible, else exported by torch."""

from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.network.capture.inputs import Inputs, InputShapes
from stretch.network.capture.results import Captured, with_shared_weights
from stretch.network.capture.trace import TraceFailure, capture_traced

__all__ = ["Captured", "capture"]


def capture(module: nn.Module, input_shape: InputShapes | Inputs = (1, 3, 224, 224), name: str | None = None) -> Captured:
    """Capture a network in evaluation mode.

    Tracing comes first: it follows operators down to single channels. A
    network that it refuses is captured by `torch.export`, where an operator of no family is opaque.

    Args:
        module: A network of tensors, which may return several within tuples, lists, dictionaries and
            dataclasses; it and every module within it are left in the mode they were in.
        input_shape: Batch, channels, height, width; of several inputs a shape each, in the order or by the names of the
            forward's arguments.

    Raises:
        UsageError: If the network rejects inputs of these shapes, or has others.
        StretchError: If it can neither be traced nor exported; says why tracing refused it, and in the hint an alternative,
            or the operator that is not captured of the network that torch exports.
    """
    arguments = Inputs.of(input_shape, module)
    try:
        return with_shared_weights(capture_traced(module, arguments, name))
    except UsageError:
        raise
    except StretchError as error:
        refused = error
    # torch's exporter is slow to import
    from stretch.network.capture.exported import ExportFailure, capture_runnable

    try:
        return with_shared_weights(capture_runnable(module, arguments, name or type(module).__name__, refused.message))
    except UsageError:
        raise
    except StretchError as error:
        if error.message == refused.message:
            raise refused from None
        if isinstance(refused, TraceFailure) and not isinstance(error, ExportFailure):
            # the cause of tracing's failure may lie within the operator that is refused here
            raise StretchError(error.message, error.hint or "give the network without that operator as `module:factory`") from error
        # torch's own reasons are long and seldom help
        hint = refused.hint if isinstance(error, ExportFailure) else None
        raise StretchError(refused.message, hint or f"torch.export does not take it either: {error.message}") from error
