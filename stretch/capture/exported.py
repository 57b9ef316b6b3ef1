"""Any network that torch can export to an operator graph for predictions: what no kind of ours computes is opaque.

`torch.export` runs the network once on tensors without data, so that neither
weights nor time matter, and records torch's own operators (ATen), whatever
Python did in between.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import fx, nn

from predictors.errors import StretchError, UsageError
from predictors.graph import OpGraph
from stretch.capture.aten import AtenLowering
from stretch.capture.trace import evaluating


def capture_exported(module: nn.Module, input_shape: Sequence[int] = (1, 3, 224, 224), name: str | None = None) -> OpGraph:
    """The operator graph of a network for predictions, by `torch.export`.

    Args:
        module: With one tensor in; it is left in the mode it was in, and its weights are not looked at.
        input_shape: Batch, channels, height, width.
        name: Name of the network; its class by default.

    Raises:
        UsageError: If the network rejects an input of this shape.
        StretchError: If torch cannot export it, or its shapes depend on values.
    """
    name = name or type(module).__name__
    with evaluating(module):
        program = _export(module, tuple(input_shape), name)
    inputs, outputs = program.graph_signature.user_inputs, program.graph_signature.user_outputs
    if len(inputs) != 1:
        raise StretchError(
            f"`{name}` needs exactly one input tensor, its forward takes {len(inputs)}", "wrap it in a module with one input"
        )
    return AtenLowering(program.graph, name).graph(str(inputs[0]), [str(each) for each in outputs if isinstance(each, str)])


def _export(module: nn.Module, shape: tuple[int, ...], name: str) -> torch.export.ExportedProgram:
    first = next(iter(module.parameters()), None)
    x = torch.zeros(shape, device=first.device if first is not None else "cpu")
    # What torch and networks warn of while they are traced concerns neither cost nor the person who asks for it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with torch.no_grad():
                program = torch.export.export(module, (x,), strict=False)
            return _functional(program)
        except Exception as error:
            raise _refused(module, x, name, error) from error


def _functional(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program without writes into views, where it has some."""
    return program.run_decompositions({}) if any(map(_writes_into_view, program.graph.nodes)) else program


def _writes_into_view(node: fx.Node) -> bool:
    """Whether a node changes a tensor that shares its memory with another."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return False
    written = node.args[0] if node.args else None
    source = getattr(getattr(written, "target", None), "_schema", None)
    views = source is not None and any(each.alias_info is not None and not each.alias_info.is_write for each in source.returns)
    return views or schema.name in ("aten::copy_", "aten::index_put_")


def _refused(module: nn.Module, x: torch.Tensor, name: str, error: Exception) -> StretchError:
    """What to say of a network that cannot be exported: whether the input is to blame, or the network."""
    said = (str(error).strip().splitlines() or [type(error).__name__])[0]
    try:
        with torch.no_grad():
            module(x)
    except Exception as own:
        reason = (str(own).strip().splitlines() or [type(own).__name__])[0]
        size = "×".join(map(str, x.shape))
        return UsageError(f"`{name}` rejects an input of {size}: {reason}", "choose another size with --input, such as 3x224x224")
    return StretchError(
        f"`{name}` cannot be exported by torch.export: {said}",
        "its forward must not branch on tensor values; give a factory of the part without that as `module:factory`",
    )
