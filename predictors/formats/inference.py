"""Shapes of an ONNX file's tensors by the shape inference of the onnx library, without large weights.

For some files that inference crashes, never ends or takes gigabytes (`GatherND` with negative ``batch_dims``, `Split` with more
outputs than stated). Files are untrusted, so inference runs in a child process with limits.
"""

import subprocess
import sys
from contextlib import suppress
from math import prod
from typing import Any

from predictors import system
from predictors.errors import StretchError, first_line

#: Number of elements above which a weight does not determine shapes.
LARGE = 1024

#: Processor seconds, and bytes in addition to the child's own, for the inference of one file.
LIMIT_S, LIMIT_BYTES = 20, 4 << 30

#: Seconds to wait per processor second, because other processes may be served first.
_WAITS = 3

#: Opset from which pooling windows are counted as in runtimes, and the oldest opset whose operators mean the same in it.
_WINDOWS, _ALIKE = 22, 18


def infer_shapes(model: Any, name: str) -> list[Any]:
    """Return the `onnx.ValueInfoProto` of inputs, of all tensors whose shapes can be inferred, and of outputs.

    Args:
        model: An `onnx.ModelProto`, which is not changed.
        name: Name of the model in messages.
    """
    ok, answer = _in_child(without_weights(model).SerializeToString())
    if not ok:
        raise StretchError(f"the shapes of {name} {answer.decode()}", "export it again")
    import onnx

    graph = onnx.load_model_from_string(answer).graph
    return [*graph.input, *graph.value_info, *graph.output]


def without_weights(model: Any) -> Any:
    """Return a copy with inputs of the same shape in place of large weights."""
    import onnx
    from onnx import helper

    light = onnx.ModelProto(ir_version=max(model.ir_version, 8))
    light.opset_import.extend(model.opset_import)
    for opset in light.opset_import:
        if opset.domain in ("", "ai.onnx") and opset.version >= _ALIKE:
            opset.version = max(opset.version, _WINDOWS)
    light.functions.extend(model.functions)
    light.graph.name = "shapes"
    for field in ("node", "input", "output", "value_info"):
        getattr(light.graph, field).extend(getattr(model.graph, field))
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if prod(tensor.dims) <= LARGE and tensor.data_location != onnx.TensorProto.EXTERNAL:
            light.graph.initializer.append(tensor)
        elif tensor.name not in declared:
            light.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return light


def _answer(content: bytes) -> tuple[bool, bytes]:
    """Return whether inference succeeded, with the inferred model or the error."""
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(content, strict_mode=False, data_prop=True)
    except Exception as error:
        return False, f"do not fit each other: {first_line(error)}".encode()
    return True, inferred.SerializeToString()


def _in_child(content: bytes) -> tuple[bool, bytes]:
    """Return the result of `_answer` in a child process, which may end in any way."""
    # the same modules as in this process, and none from the working directory
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import _serve; _serve()"
    with suppress(subprocess.TimeoutExpired):
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, input=content, capture_output=True, timeout=LIMIT_S * _WAITS, check=False)
        if done.stdout and not done.returncode:
            return bool(done.stdout[0]), done.stdout[1:]
    return False, b"cannot be worked out: the onnx library fails at them"


def _serve() -> None:
    """Write the result of `_answer` for stdin to stdout."""
    import onnx.shape_inference  # noqa: F401 (its memory is not that of the file)

    content = sys.stdin.buffer.read()
    _limit()
    ok, answer = _answer(content)
    sys.stdout.buffer.write(bytes([ok]) + answer)


def _limit() -> None:
    """Limit the resources of this process, if the system supports it, and disable core dumps."""
    resource = system.resource
    if resource is None:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    try:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    least = [value for value in resource.getrlimit(resource.RLIMIT_AS) if value != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([used + LIMIT_BYTES, *least]),) * 2)
