import pytest

from predictors.errors import StretchError, UnknownNameError
from predictors.fusion import fuse
from predictors.graph import Op, OpGraph
from predictors.predictor import LatencyPredictor
from predictors.slices import Channels
from stretch.planning.divisions.channels import divided_tensor, find_hidden, needed_channels
from stretch.planning.divisions.ends import ARRIVING, find_tasks
from stretch.planning.network.segments import (
    channel_groups,
    clean_cuts,
    cut_points,
    cut_segment,
    divide,
    feature_maps,
    find_blocks,
    find_meeting_points,
    find_stem_end,
    split_segments,
)
from tests.predictors.networks import Net, convolution, efficientnet_lite4, resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.design.test_paths import conv, joined


def diamond():
    return OpGraph.build(
        "diamond",
        [
            Op("input", "input", attrs={"shape": (1, 4, 4, 4)}),
            convolution("a", "input", 4),
            convolution("b", "a", 4),
            Op("sum", "add", ("a", "b")),
            Op("relu", "relu", ("sum",)),
        ],
        "relu",
    )


def test_cut_points_are_exactly_the_operators_whose_removal_separates_output_from_input():
    graph = diamond()
    readers = {op.name: [o.name for o in graph.ops if op.name in o.inputs] for op in graph.ops}

    def reaches(start, without):
        visited, pending = set(), [start]
        while pending:
            name = pending.pop()
            if name not in visited and name != without:
                visited.add(name)
                pending += readers[name]
        return graph.output in visited

    separating = [op.name for op in graph.ops if op.name in (graph.input.name, graph.output) or not reaches(graph.input.name, op.name)]
    assert cut_points(graph) == separating


def named(graph, name):
    return next(s for s in split_segments(graph) if s.name == name)


OWN_ENDS = [
    ("stem", "input", "maxpool"),
    ("s1", "maxpool", "layer2_1_relu_1"),
    ("s2", "layer2_1_relu_1", "avgpool"),
    ("head", "avgpool", "fc"),
]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("model", "property_of", "expected"),
    [
        # a stage that starts with an identity skip keeps its first block
        ("resnet18", lambda graph: [b.removable for b in find_blocks(named(graph, "s1").graph)], [False, True]),
        # a boundary moves past activation and pooling
        ("resnet18", find_meeting_points, ["layer1_1_relu_1", "layer2_1_relu_1", "layer3_1_relu_1", "avgpool"]),
        ("resnet18", find_stem_end, "maxpool"),
        # a resolution without a run of blocks ends at its last narrowest cut
        ("efficientnet_b0", lambda graph: find_meeting_points(graph)[0], "features_1_0_block_2_1"),
        ("resnet18", lambda graph: [(s.name, s.start, s.end) for s in split_segments(graph, ["layer2_1_relu_1", "avgpool"])], OWN_ENDS),
        # an entry is needed only after an identity skip
        ("resnet18", lambda graph: [named(graph, "s1").entry(width, 64) for width in (32, 64)], ["project", "none"]),
        ("resnet18", lambda graph: named(graph, "s2").entry(64, 64), "none"),
    ],
)
def test_stages_of_real_networks_end_at_the_expected_operators(captured, model, property_of, expected):
    assert property_of(captured(model).graph) == expected


@pytest.mark.torch
def test_convolution_chains_are_units_without_skips(captured):
    segments = split_segments(captured("tiny_vgg").graph)
    shapes = next(s for s in segments if s.branchable).graph.by_name
    blocks = find_blocks(next(s for s in segments if s.branchable).graph)
    assert all(shapes[b.start].shape == shapes[b.end].shape for b in blocks if b.removable)
    assert any(b.removable for s in segments for b in find_blocks(s.graph))


STATED = {"kernel": "copy", "variant": "permute", "in_channels": 1, "out_channels": 1, "groups": 1, "taps": 1, "pixels": 1, "weights": 0}


def test_tensor_with_axes_of_unknown_meaning_is_not_a_feature_map():
    graph = diamond()
    ops = [
        *graph.ops,
        Op("last", "opaque", ("relu",), {**STATED, "shape": (1, 4, 4, 4)}),
        Op("act", "silu", ("last",)),
        Op("both", "add", ("relu", "act")),
        Op("seen", "view", ("act",), {"shape": (1, 4, 2, 8)}),
        convolution("conv", "seen", 4),
        Op("tokens", "view", ("conv",), {"shape": (1, 4, 16)}),
    ]
    graph = OpGraph.build("mixed", ops, "tokens")
    assert feature_maps(graph) == {"input", "a", "b", "sum", "relu", "both", "conv"}


def isotropic(blocks):
    ops = [Op("input", "input", attrs={"shape": (1, 3, 8, 8)}), convolution("stem", "input", 8, 3)]
    last = "stem"
    for i in range(blocks):
        ops += [convolution(f"c{i}", last, 8, 3), Op(f"a{i}", "add", (last, f"c{i}"))]
        last = f"a{i}"
    return OpGraph.build("isotropic", ops, last)


def test_network_of_one_long_run_is_divided_into_parts_of_equal_cost_unless_it_has_no_weights():
    assert [s.depth for s in split_segments(isotropic(12)) if s.branchable] == [3, 3, 3, 3]
    graph = OpGraph.build("none", [Op("input", "input", attrs={"shape": (1, 3, 8, 8)}), Op("r", "relu", ("input",))], "r")
    assert find_meeting_points(graph) == []


@pytest.mark.torch
@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        (lambda graph: split_segments(graph, ["layer1_0_bn1"]), UnknownNameError, "unknown cut point `layer1_0_bn1`"),
        (lambda graph: split_segments(graph, ["avgpool", "layer2_1_relu_1"]), StretchError, "order"),
        (lambda graph: cut_segment(graph, "s", "avgpool", "maxpool"), StretchError, "not after its start"),
    ],
)
def test_meeting_point_inside_a_block_or_out_of_order_is_refused(captured, split, error, message):
    with pytest.raises(error, match=message) as caught:
        split(captured("resnet18").graph)
    assert error is StretchError or "layer1" in caught.value.hint


def test_branch_after_a_grouped_convolution_that_multiplies_channels_needs_as_many_as_it_reads():
    """The last stage of FastViT has two parallel grouped convolutions that write two channels per input channel."""
    net = Net(1, 3, 8, 8)
    start = net.conv(8, 3)
    one = net.conv(16, 3, groups=8, act=None)
    net.add("add", one, net.conv(16, groups=8, act=None, source=start))
    end = net.add("relu")
    net.head(10)
    segment = next(s for s in split_segments(net.graph("g"), [start, end]) if s.end == end)
    assert (segment.width, segment.in_width) == (16, 8)
    assert [segment.entry(*widths) for widths in ((16, 8), (8, 4), (16, 4), (8, 8))] == ["none", "none", "project", "project"]


MI9 = LatencyPredictor(specified("mi9"))


def test_parts_are_blocks_and_the_operators_after_the_last_tensor_with_rows():
    graph = resnet50()
    stages = {stage.name: stage for stage in split_segments(graph)}
    clean = frozenset(cut_points(graph))
    assert [part.name for part in divide(graph, stages["s2"], clean)] == ["s2_1", "s2_2", "s2_3", "s2_4"]
    assert len({part.name for stage in stages.values() for part in divide(graph, stage, clean)}) == 19
    graph = efficientnet_lite4()
    head = divide(graph, split_segments(graph)[-1], frozenset(cut_points(graph)))
    assert [part.graph.by_name[part.end].shape[2:] for part in head] == [(7, 7), ()]


def test_cut_point_that_a_kernel_spans_is_not_clean():
    graph = small_resnet()
    clean = clean_cuts(graph, [MI9.kernels(graph, "cpu")])
    convolution = next(op.name for op in graph.ops if op.kind == "conv")
    assert convolution in cut_points(graph)
    assert convolution not in clean
    assert graph.output in clean


BACKENDS = ("tflite_cpu", "tflite_gpu", "onnxruntime")


def tasks_of(graph, backends=BACKENDS):
    return find_tasks(graph, [fuse(graph, backend) for backend in backends])


def test_parallel_chains_are_one_task_each_and_skips_do_not_split_a_chain():
    assert not tasks_of(small_resnet()).parallel
    for graph in (small_resnet(), resnet50()):
        tasks = tasks_of(graph)
        assert len(tasks) < sum(op.kind == "add" for op in graph.ops) * 4
    graph = joined(("b", "d"), "concat", conv("a", "x"), conv("b", "a"), conv("c", "x"), conv("d", "c"))
    tasks = tasks_of(graph)
    assert tasks.ops == (("a", "b"), ("c", "d"), ("end",))
    assert tasks.reads == (((ARRIVING, "x"),), ((ARRIVING, "x"),), ((0, "b"), (1, "d")))
    assert (tasks.sources, tasks.readers) == (((), (), (0, 1)), ((2,), (2,), ()))
    assert tasks.parallel


def test_operators_that_any_backend_fuses_are_in_one_task():
    graph = joined(("s", "r"), "concat", conv("a", "x"), conv("b", "x"), Op("s", "add", ("a", "b")), Op("r", "relu", ("x",)))
    (task,) = [ops for ops in tasks_of(graph, ("tflite_gpu",)).ops if "s" in ops]
    assert task == ("a", "b", "s")  # the second convolution and the sum are one kernel, which waits for the first convolution
    assert ("b",) in tasks_of(graph, ("tflite_cpu",)).ops


@pytest.mark.parametrize("processor", ["cpu", "gpu", "dsp"])
def test_kernels_of_the_parts_are_the_kernels_of_the_whole(processor):
    graph = efficientnet_lite4()
    kernels = MI9.kernels(graph, processor)
    parts = [part for stage in split_segments(graph) for part in divide(graph, stage, clean_cuts(graph, [kernels]))]
    assert [part.start for part in parts] == [graph.input.name, *(part.end for part in parts[:-1])]
    assert parts[-1].end == graph.output
    launched = [kernel.cost for part in parts for kernel in MI9.kernels(part.graph, processor)]
    assert launched == [kernel.cost for kernel in kernels]


def groups_of(*ops, output=None, channels=8):
    graph = OpGraph.build("net", [Op("input", "input", attrs={"shape": (1, channels, 6, 6)}), *ops], output or ops[-1].name)
    return channel_groups(graph)


def test_units_are_coarsened_to_whole_convolution_groups():
    groups = groups_of(convolution("a", "input", 16), convolution("dw", "a", 32, groups=16))
    ((group, per),) = groups.pieces["dw"]
    assert (group, 1) == groups.pieces["a"][0]
    assert per == 2
    groups = groups_of(convolution("a", "input", 24), convolution("g", "a", 12, groups=4))
    ((group, before),) = groups.pieces["a"]
    assert groups.pieces["g"] == ((group, 3),)
    assert (groups.units[group], before) == (4, 6)


@pytest.mark.parametrize(
    ("ops", "frozen"),
    [
        ([convolution("a", "input", 16), Op("cut", "slice", ("a",), {"start": 3, "stop": 9})], ("a", "cut")),
        (
            [
                *(convolution(name, "input", 8) for name in "ab"),
                Op("cat", "concat", ("a", "b")),
                convolution("c", "input", 16),
                Op("sum", "add", ("cat", "c")),
            ],
            ("a", "b", "c"),
        ),
    ],
)
def test_slice_through_a_group_and_addition_of_differently_divided_tensors_freeze_their_inputs(ops, frozen):
    groups = groups_of(*ops)
    assert all(group in groups.frozen for name in frozen for group, _ in groups.pieces[name])


def inverted(*, gate=False, groups=24, relu=False, skip=True):
    net = Net(1, 8, 10, 10)
    net.conv(24)
    middle = net.conv(24, 3, groups=groups)
    if gate:
        net.add("global_avg_pool", keepdims=True)
        net.conv(6)
        net.conv(24, act="sigmoid")
        net.add("mul", middle, net.last)
    net.conv(8, act=None)
    if skip:
        net.add("add", "input", net.last)
    if relu:
        net.add("relu")
    return net.graph("block")


def test_hidden_tensor_is_the_input_of_the_projection_or_of_the_most_expensive_term():
    graph = inverted()
    hidden, projection, tail = find_hidden(graph)
    assert (graph.by_name[hidden].shape[1], graph.by_name[projection].shape[1]) == (24, 8)
    assert [graph.by_name[name].kind for name in tail] == ["batch_norm", "add"]
    assert divided_tensor(graph, hidden=True) == hidden
    net = Net(1, 8, 10, 10)
    body = net.conv(8, 3, act=None, source=net.conv(32, 3))
    total = net.add("add", net.conv(8, act=None, source="input"), body)
    graph = net.graph("block")
    assert (total, graph.by_name[find_hidden(graph)[0]].shape[1]) == (graph.output, 32)


def mixed(kind, **attrs):
    net = Net(1, 8, 10, 10)
    start = net.conv(12)
    if kind == "gate":
        net.add("global_avg_pool", keepdims=True)
        net.conv(12, act="sigmoid")
        net.add("mul", start, net.last)
    else:
        net.add(kind, **attrs)
    return net.graph("mixed")


def read_twice(*between):
    net = Net(1, 8, 10, 10)
    total = net.conv(8, act=None)
    net.add("add", total, *[net.add(kind, total) for kind in between] or [total])
    return net.graph("twice")


@pytest.mark.parametrize(
    ("graph", "hidden", "reason"),
    [
        (inverted(relu=True), True, r"`relu_\d+` \(relu\) needs the whole sum"),
        (inverted(gate=True), True, r"`conv_8` \(conv\) mixes the channels of `mul_\d+`"),
        (inverted(gate=True, skip=False), True, "mixes the channels"),
        (Net(1, 8, 4, 4).graph("nothing"), True, "without a convolution or linear layer"),
        (mixed("softmax"), False, r"\(softmax\) mixes the channels of `softmax"),
        (mixed("layer_norm", eps=1e-6, affine=True), False, r"\(layer_norm\) mixes the channels of `layer_norm"),
        (mixed("channel_shuffle", groups=3), False, r"\(channel_shuffle\) mixes the channels of `channel_shuffle"),
        (mixed("gate"), False, r"`conv_5` \(conv\) mixes the channels of `mul_\d+`"),
        (read_twice("relu"), True, "is read before its sum is complete"),
        (read_twice(), True, "is read before its sum is complete"),
    ],
)
def test_operator_that_prevents_a_division_is_named(graph, hidden, reason):
    with pytest.raises(StretchError, match=reason) as caught:
        divided_tensor(graph, hidden=hidden)
    assert caught.value.hint


def test_dense_convolution_needs_all_input_channels():
    graph = inverted()
    needed = needed_channels(graph, {graph.output: Channels(2, 5)})
    hidden, projection, _ = find_hidden(graph)
    assert (needed[hidden], needed[projection]) == (Channels(0, 24), Channels(2, 5))
    assert needed["input"] == Channels(0, 8)
