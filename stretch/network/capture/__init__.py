"""Capture any network as an operator graph: by tracing if that is possible, else by torch.export."""

from torch import nn

from predictors.errors import StretchError, UsageError
from stretch.network.capture.inputs import Inputs, InputShapes
from stretch.network.capture.results import Captured, with_shared_weights
from stretch.network.capture.trace import TraceFailure, capture_traced

__all__ = ["Captured", "capture"]


def capture(module: nn.Module, input_shape: InputShapes | Inputs = (1, 3, 224, 224), name: str | None = None) -> Captured:
    """Capture a network in evaluation mode.

    Tracing is tried first: it follows operators down to single channels. A network that it
    refuses is captured by `torch.export`; an operator that belongs to no family becomes opaque.

    Args:
        module: A network of tensors, which may return several within tuples, lists, dictionaries and
            dataclasses. The network and every module within it keep their training or evaluation mode.
        input_shape: Batch, channels, height, width; for several inputs one shape each, in the order or by the names of the
            forward's arguments.

    Raises:
        UsageError: If the network rejects inputs of these shapes, or has a different number of inputs.
        StretchError: If it can neither be traced nor exported. The message says why tracing refused it; the hint gives an
            alternative, or names the operator that could not be captured from torch's export.
    """
    arguments = Inputs.of(input_shape, module)
    try:
        return with_shared_weights(capture_traced(module, arguments, name))
    except UsageError:
        raise
    except StretchError as error:
        refused = error
    # imported here because torch's exporter is slow to import
    from stretch.network.capture.exported import ExportFailure, capture_runnable

    try:
        return with_shared_weights(capture_runnable(module, arguments, name or type(module).__name__, refused.message))
    except UsageError:
        raise
    except StretchError as error:
        if error.message == refused.message:
            raise refused from None
        if isinstance(refused, TraceFailure) and not isinstance(error, ExportFailure):
            # the cause of tracing's failure may be the operator that is refused here
            raise StretchError(error.message, error.hint or "give the network without that operator as `module:factory`") from error
        # torch's own reasons are long and seldom help
        hint = refused.hint if isinstance(error, ExportFailure) else None
        raise StretchError(refused.message, hint or f"torch.export does not take it either: {error.message}") from error
