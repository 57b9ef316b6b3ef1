"""Archives of torch.export (`.pt2`) as torch networks of ATen operators, which `torch.export` captures as any other module."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from predictors.errors import StretchError, first_line, need
from scheduler.bundle.manifest import SourceFile, SourceTensor
from stretch.network.capture.aten import named_arguments
from stretch.network.capture.inputs import InputShapes
from stretch.network.capture.results import walk_leaves
from stretch.network.models.builder import BATCH_NORMS, End, OwnNetwork, Size, finish_network, named_ends, resolve_input_shapes

#: Half-precision types; they are computed in single precision.
HALF = (torch.float16, torch.bfloat16)

#: Arguments of calls that are true during training.
_TRAINING = ("train", "training")


def read_module(path: str | Path, input_shape: InputShapes | None = None) -> fx.GraphModule:
    """Load the network from an archive of `torch.export.save`, in evaluation mode and single precision.

    `torch.export.load` can execute code in a file, so the caller has to trust the file. Layers keep the names of their
    weights, and results keep the module's structure. The module describes its inputs:
    `stretch.network.models.builder.finish_network`.
    """
    path = Path(path)
    program = _load_program(path)
    specs = zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True)
    inputs = [node for node, spec in specs if spec.kind is InputKind.USER_INPUT]
    ends = named_ends(path, [_input_end(node) for node in inputs if isinstance(node.meta["val"], torch.Tensor)])
    shapes = resolve_input_shapes(path, ends, input_shape)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = program.module(check_guards=False)
    graph = network.graph
    # both lists are in the same order; the export renames arguments that are names in Python, such as `input`
    originals = dict(zip(graph.find_nodes(op="placeholder"), inputs, strict=True))
    arguments = {end.name: end.argument for end in ends}
    for node in list(graph.nodes):
        if node in originals and originals[node].name in arguments:
            node.target = arguments[originals[node].name]
        elif node.op == "placeholder" or "._assert" in str(node.target):
            # numbers among the inputs are part of the exported program
            graph.erase_node(node)
        elif node.op == "call_function":
            _evaluate(node)
            _as_layer(network, node)
    specs_of = [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    numbers = [getattr(arg, "value", None) for arg in specs_of]
    (output,) = graph.find_nodes(op="output")
    output.args = (pytree.tree_unflatten(output.args[0], program.call_spec.out_spec),)
    graph.set_codegen(fx.graph.CodeGen())
    own = SourceFile(
        tuple(SourceTensor(end.name, end.argument, shapes[end.argument], end.kind) for end in ends),
        tuple(SourceTensor(key, key, ()) for key, _ in walk_leaves(output.args[0])),
        "fp16" if any(parameter.dtype in HALF for parameter in program.state_dict.values()) else "fp32",
    )
    return finish_network(
        path,
        fx.GraphModule(network, graph, "Network").float().eval(),
        shapes,
        ends,
        [],
        OwnNetwork(own, opener=partial(_open_archive, numbers)),
    )


def _open_archive(numbers: Sequence[Any], path: Path, own: SourceFile) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Load an archive's network in torch; return a function from inputs by the forward's arguments to outputs by keys.

    Args:
        numbers: Arguments that are not tensors; None in place of a tensor.
    """
    program = _load_program(path)
    module, spec = program.module(check_guards=False), program.call_spec.in_spec

    @torch.inference_mode()
    def run(inputs: Mapping[str, Any]) -> dict[str, Any]:
        tensors = (torch.from_numpy(inputs[end.tensor].copy()).to(getattr(torch, end.dtype)) for end in own.inputs)
        flat = [next(tensors) if number is None else number for number in numbers]
        args, kwargs = pytree.tree_unflatten(flat, spec)
        return {key: tensor.float().numpy() for key, tensor in walk_leaves(module(*args, **kwargs))}

    return run


def _load_program(path: Path) -> torch.export.ExportedProgram:
    need(path.is_file(), f"cannot read the model {path}: there is no such file")
    logger, logged = logging.getLogger("torch.export"), list[BaseException | None]()

    def keep_reason(record: logging.LogRecord) -> bool:
        """Keep the reason why torch could not read the file, which torch logs instead of raising it."""
        logged.append(record.exc_info[1] if record.exc_info else None)
        return False

    logger.addFilter(keep_reason)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.export.load(path)
    # torch raises any exception that reading a damaged or foreign file causes
    except Exception as error:
        raise StretchError(
            f"torch.export.load cannot read {path}: {first_line(next(filter(None, logged), error))[:160]}",
            "save the network with torch.export.save of this torch; let it return tensors in tuples, lists and dictionaries",
        ) from error
    finally:
        logger.removeFilter(keep_reason)


def _input_end(node: fx.Node) -> End:
    """Return the archive's statement about an input; an open batch is 1, and other open sizes are those of the export."""
    value = node.meta["val"]
    sizes = []
    for axis, size in enumerate(value.shape):
        if isinstance(size, int):
            sizes.append(Size(size, fixed=True))
        else:
            expression = size.node.expr
            sizes.append(Size(1 if axis == 0 else int(size.node.hint or 0), str(expression) if expression.is_Symbol else ""))
    readers = [reader for reader in node.users if "._assert" not in str(reader.target)]
    # whether all readers convert the input to reals
    casts = [str(reader.target).startswith(("aten.to.", "aten._to_copy.")) for reader in readers]
    cast = bool(readers) and all(casts) and all(reader.meta["val"].dtype in (torch.float32, *HALF) for reader in readers)
    return End(node.name, sizes, str(value.dtype).removeprefix("torch."), cast)


def _evaluate(node: fx.Node) -> None:
    """Change a call to evaluation mode and single precision."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    node.args = tuple(False if name in _TRAINING else value for name, value in zip(names, node.args, strict=False)) if names else node.args
    node.args, node.kwargs = fx.node.map_aggregate((node.args, node.kwargs), lambda value: torch.float32 if value in HALF else value)


def _as_layer(network: fx.GraphModule, node: fx.Node) -> None:
    """Replace a call by the layer that holds its weights, so that other code finds layers to replace, reset or settle."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    values = named_arguments(node)
    stored = {key: item for key, item in values.items() if isinstance(item, fx.Node) and item.op == "get_attr"}
    homes = {str(item.target).rpartition(".") for item in stored.values()}
    home = next(iter(homes))[0] if homes else ""
    if not home or "weight" not in stored or any(str(item.target) != f"{home}.{key}" for key, item in stored.items()):
        return
    tensors = {key: attrgetter(str(item.target))(network) for key, item in stored.items()}
    layer = _layer(schema.name.rpartition(":")[2], values, tensors["weight"])
    current = network.get_submodule(home)
    if layer is None or type(current) not in (nn.Module, type(layer)) or repr(current) not in ("Module()", repr(layer)):
        return
    for key, tensor in tensors.items():
        setattr(layer, key, tensor)
    network.set_submodule(home, layer)
    with node.graph.inserting_after(node):
        called = node.graph.call_module(home, (node.args[0],))
    called.meta = node.meta
    node.replace_all_uses_with(called)
    node.graph.erase_node(node)


def _layer(name: str, values: dict[str, Any], weight: torch.Tensor) -> nn.Module | None:
    """Build the torch layer that computes a call, with uninitialised weights; None if torch has no such layer."""
    bias = values.get("bias") is not None
    if name.startswith("conv") and name[-1] == "d":
        options = {key: values[key] for key in ("stride", "padding", "output_padding", "dilation", "groups") if key in values}
        options = {key: item[0] if isinstance(item, Sequence) and len(item) == 1 else item for key, item in options.items()}
        first, second = (item * n for item, n in zip(weight.shape[:2], (1, values["groups"]), strict=True))
        transposed = "transpose" in name
        make: Callable[..., nn.Module] = getattr(nn, f"Conv{'Transpose' if transposed else ''}{name[-2:]}")
        channels = (first, second) if transposed else (second, first)
        return make(*channels, tuple(weight.shape[2:]), bias=bias, device="meta", **options)
    match name:
        case "linear":
            return nn.Linear(weight.shape[1], weight.shape[0], bias, device="meta")
        case "batch_norm" if bias and values["running_mean"] is not None:
            rank = values["input"].meta["val"].dim()
            return BATCH_NORMS[rank](len(weight), float(values["eps"]), float(values["momentum"]))
        case "layer_norm":
            return nn.LayerNorm(list(values["normalized_shape"]), float(values["eps"]), bias=bias, device="meta")
        case "group_norm" if bias:
            return nn.GroupNorm(values["num_groups"], len(weight), float(values["eps"]), device="meta")
        case "prelu":
            return nn.PReLU(weight.numel(), device="meta")
    return None
