import sys

import pytest

from scheduler.delegates import get_delegate
from scheduler.delegates.base import UnableError
from scheduler.delegates.coreml import planned
from tests.scheduler.delegates.cases import Case, floats

#: Options of the provider and their values, as ONNX Runtime documents them; others are 0 or 1.
DOCUMENTED = {"ModelFormat": ("MLProgram", "NeuralNetwork"), "MLComputeUnits": ("CPUOnly", "CPUAndNeuralEngine", "CPUAndGPU", "ALL")}
SWITCHES = ("RequireStaticInputShapes", "EnableOnSubgraphs", "ProfileComputePlan", "AllowLowPrecisionAccumulationOnGPU")

#: A plan as the provider logs it: constants have no device.
PLAN = """2026-01-02 03:04:05.678 python[42:99] Operation: const, Device Usage: (null), Estimated Cost: 0.000000
2026-01-02 03:04:05.679 python[42:99] Operation: ios15.conv, Device Usage: <MLNeuralEngineComputeDevice: 0x1>, Estimated Cost: 0.6
2026-01-02 03:04:05.679 python[42:99] Operation: ios15.relu, Device Usage: <MLCPUComputeDevice: 0x2>, Estimated Cost: 0.2
"""


@pytest.mark.parametrize("name", ["coreml", "coreml:GPU", "coreml:NPU"])
def test_provider_is_told_what_it_documents_and_keeps_programs_by_content(tmp_path, name):
    kept = []
    for slope in (0.1, 0.2):
        Case("LeakyRelu", [floats((1, 3, 8, 8), 0)], {"alpha": slope}).save(tmp_path / "op.onnx")
        options = get_delegate(name).options(tmp_path / "op.onnx")
        kept.append(options.pop("ModelCacheDirectory"))
        assert all(value in DOCUMENTED.get(option, ("0", "1")) for option, value in options.items())
        assert options.keys() <= {*DOCUMENTED, *SWITCHES}
    assert kept[0] != kept[1]
    if sys.platform != "darwin":
        with pytest.raises(UnableError, match="Core ML is on macOS alone"):
            get_delegate(name).create(()).compile(tmp_path / "op.onnx")


def test_plan_tells_where_each_operator_runs():
    assert [(place.op, place.reason) for place in planned(PLAN)] == [
        ("conv", "Core ML prefers the Neural Engine, 75.0 % of the cost it expects"),
        ("relu", "Core ML prefers the CPU, 25.0 % of the cost it expects"),
    ]
