"""Which layers of an int8 or fp16 subgraph lose most."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from stretch.quantize.compare import Loss, loss
from stretch.quantize.fold import fold_batch_norms
from stretch.quantize.replay import Sample, fed

Array = NDArray[Any]


def layer_losses(model: onnx.ModelProto, lower: onnx.ModelProto, samples: Sequence[Sample]) -> dict[str, Loss]:
    """Loss of each tensor that both forms of a subgraph have, the lower one's errors before it included.

    Args:
        lower: What `stretch.quantize.qdq.quantise` or `stretch.quantize.half.to_half` made of it.
    """
    folded = fold_batch_norms(model)
    rounded = _dequantised(lower) or _same_names(lower)
    names = [out for node in folded.graph.node for out in node.output if out in rounded]
    if not names:
        return {}
    expected = _values(folded, names, samples)
    got = _values(lower, [rounded[name] for name in names], samples)
    # where an activation is part of the operator before it, rows of a band are cut behind both
    alike = [name for name in names if expected[name][0].shape == got[rounded[name]][0].shape]
    return {name: loss(zip(expected[name], got[rounded[name]], strict=True)) for name in alike}


def _dequantised(int8: onnx.ModelProto) -> dict[str, str]:
    """For each float tensor that is quantised, the tensor of the reals that its integers stand for."""
    integers = {node.output[0]: node.input[0] for node in int8.graph.node if node.op_type == "QuantizeLinear"}
    outputs = {value.name for value in int8.graph.output}
    reals = [node for node in int8.graph.node if node.op_type == "DequantizeLinear" and node.input[0] in integers]
    # The quantiser renames what it rounds to an output.
    return {node.output[0] if node.output[0] in outputs else integers[node.input[0]]: node.output[0] for node in reals}


def _same_names(lower: onnx.ModelProto) -> dict[str, str]:
    """Tensors of a subgraph in half precision, which keep their names."""
    return {out: out for node in lower.graph.node for out in node.output}


def _values(model: onnx.ModelProto, names: Sequence[str], samples: Sequence[Sample]) -> dict[str, list[Array]]:
    import onnxruntime

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {value.name for value in shown.graph.output}
    shown.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    session = onnxruntime.InferenceSession(shown.SerializeToString(), options, providers=["CPUExecutionProvider"])
    values_by_name: dict[str, list[Array]] = {name: [] for name in names}
    for sample in samples:
        for name, value in zip(names, session.run(list(names), fed(shown, sample)), strict=True):
            values_by_name[name].append(np.asarray(value, np.float32))
    return values_by_name
