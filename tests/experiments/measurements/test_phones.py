"""The phone tables become measurements: units, names, and which row is which kernel."""

from experiments.measurements.phones import implementation, kernel_latencies, latencies
from tests.predictors.networks import Net

ROW = {
    "model": "net",
    "FLOPS": "1",
    "pixel4|1large|float|mean": "1500.25",
    "pixel4|1large|float|std": "10",
    "pixel4|gpu|float|mean": "2000",
}


def network():
    net = Net(1, 3, 32, 32)
    net.conv(8, 3, stride=2)
    net.conv(8, 3)
    net.conv(8, 3)
    net.head(10)
    return net.graph("net")


def row(operation, kernel, **shape):
    keys = {"Input_shape": "16", "Output_shape": "16", "Input_channel": 8, "Kernel": "3", "Filter": "8"}
    return {"model": "net", "operation": operation, "feature": str(keys | shape), "s10|gpu|float": "250", "s10|gpu|kernel": kernel}


ROWS = [
    row("CONV_2D", "convolution_2d_0_linked_:_relu_1", Input_channel=3, Input_shape="32"),
    row("CONV_2D", "convolution_2d_2_linked_:_relu_3"),
    row("CONV_2D", "convolution_winograd_4x4_6x6_4"),
    row("MEAN", "mean_6", Output_shape="8"),
    row("FULLY_CONNECTED", "fully_connected_7", Input_shape="-"),
]


def test_times_become_milliseconds_and_precisions_ours():
    whole = {**ROW, "pixel4|1large|quant|mean": "700", "pixel4|1large|quant|std": "1", "pixel4|gpu|float|std": "20"}
    found = {(each.processor, each.core_set, each.precision): each for each in latencies([whole])}
    assert found["cpu", "1large", "fp32"].ms == 1.50025
    assert found["cpu", "1large", "int8"].ms == 0.7
    assert (found["gpu", "all", "fp16"].ms, found["gpu", "all", "fp16"].std_ms) == (2.0, 0.02)


def test_kernels_carry_the_implementation_that_their_name_tells():
    made = list(kernel_latencies(ROWS, {"net": network()}))
    assert [each.implementation for each in made] == [
        "convolution_2d",
        "convolution_2d",
        "convolution_winograd_4x4_6x6",
        "mean",
        "fully_connected",
    ]
    assert {each.ms for each in made} == {0.25}
    assert implementation("depthwise_convolution_36_linked_:_relu_37") == "depthwise_convolution"
