import pytest

from predictors.fusion import fuse
from scheduler.cores import available_cores
from scheduler.delegates import get_delegate
from scheduler.measure.steady import runner, time_kernels, time_operators
from stretch.tools.profiling.places import write_network
from stretch.tools.profiling.styles import STYLES, draw

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("style", STYLES)
def test_kernels_of_onnx_runtime_are_those_of_the_fusion_rules(tmp_path, style):
    graph = draw(style, 1)
    cores = available_cores()[:1]
    delegate = get_delegate("cpu").create(cores)
    file = write_network(graph, tmp_path / "x.onnx")
    runner(delegate.compile(file), cores)()
    operators, added = time_operators(delegate, file, cores, [op.name for op in graph.ops])
    kernels = fuse(graph, "onnxruntime")
    times = time_kernels(operators, [kernel.ops for kernel in kernels])
    # Slices of a microsecond round to none, and normalisations or sums may join a convolution that the rules do not see.
    lone = [kernel.cost.kind for kernel, ms in zip(kernels, times, strict=True) if ms is None]
    assert len(lone) <= 0.25 * len(kernels)
    assert not set(lone) & {"conv", "conv1x1", "depthwise", "grouped", "linear"}
    # Other kernels are changes of layout: a small part.
    assert added <= 0.5 * sum(operators.values()) + 0.2
