from onnx import helper

from scheduler.delegates.cpu import place_kernels

NODES = [
    helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1"),
    helper.make_node("BatchNormalization", ["c1"], ["b1"], name="bn1"),
    helper.make_node("Relu", ["b1"], ["r1"], name="relu1"),
    helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2"),
    helper.make_node("Add", ["c2", "x"], ["a2"], name="add2"),
    helper.make_node("Relu", ["a2"], ["r2"], name="relu2"),
    helper.make_node("Flatten", ["r2"], ["y"]),
]


def placed(kernels):
    return {p.name: (p.ms, p.reason) for p in place_kernels(NODES, kernels)}


def test_kernel_in_blocked_layout_belongs_to_the_convolution_it_started_from():
    places = placed({"r1_nchwc": ("Conv", 2.0), "r2_nchwc": ("Conv", 3.0), "Flatten_6": ("Flatten", 0.5)})
    assert {name: ms for name, (ms, _) in places.items() if ms is not None} == {"conv1": 2.0, "conv2": 3.0, "Flatten_6": 0.5}
    assert "`conv1`" in places["bn1"][1]
    assert "`conv1`" in places["relu1"][1]
    assert "`conv2`" in places["add2"][1]
    assert "`conv2`" in places["relu2"][1]


def test_fused_kernel_is_found_by_the_name_it_was_given():
    places = placed({"fused conv1": ("FusedConv", 2.0), "conv2": ("Conv", 1.0), "add2": ("Add", 0.1), "relu2": ("Relu", 0.2)})
    assert places["conv1"][0] == 2.0
    assert places["add2"][0] == 0.1
    assert "`conv1`" in places["relu1"][1]


def test_kernel_of_no_operator_is_listed_as_added():
    places = placed({"ReorderOutput_token_3": ("ReorderOutput", 0.4)})
    assert places["ReorderOutput_token_3"] == (0.4, "added by ONNX Runtime to change the layout")


def test_operator_without_any_kernel_before_it_was_optimised_away():
    assert "optimised away" in placed({})["conv1"][1]
