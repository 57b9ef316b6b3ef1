import pytest

from predictors.errors import StretchError
from predictors.fusion import IDIOMS, RULE_FOLDER, Fuser, fuse, load_rules, recognise
from predictors.graph import Op, OpGraph
from predictors.in_place import copied_parts
from tests.predictors.networks import Net, efficientnet_b5, resnet50

BACKENDS = sorted(path.stem for path in RULE_FOLDER.glob("*.toml"))


def residual():
    net = Net(1, 8, 4, 4)
    start = net.last
    net.conv(8, 3)
    main = net.conv(8, act=None)
    net.add("add", main, start)
    net.add("relu")
    return net.graph("residual")


def kinds(graph, backend):
    return [tuple(graph.by_name[name].kind for name in kernel.ops) for kernel in fuse(graph, backend)]


@pytest.mark.parametrize("backend", ["tflite_gpu", "onnxruntime"])
def test_residual_addition_joins_the_convolution_where_the_backend_links_it(backend):
    assert kinds(residual(), backend) == [("conv", "batch_norm", "relu"), ("conv", "batch_norm", "add", "relu")]


def test_swish_is_an_operator_of_its_own_on_the_cpu_but_not_on_the_gpu():
    net = Net(1, 8, 4, 4)
    net.conv(8, act="silu")
    graph = net.graph("g")
    assert kinds(graph, "tflite_cpu") == [("conv", "batch_norm"), ("silu",)]
    assert kinds(graph, "tflite_gpu") == [("conv", "batch_norm", "silu")]


@pytest.mark.representatives(9)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [residual, resnet50, efficientnet_b5])
def test_every_operator_is_in_one_kernel_or_free(make, backend):
    graph = make()
    kernels = fuse(graph, backend)
    named = [name for kernel in kernels for name in kernel.ops]
    assert len(named) == len(set(named))
    left = [op for op in graph.ops if op.name not in named]
    assert {op.kind for op in left} <= load_rules(backend).kinds(load_rules(backend).free)
    assert sum(kernel.macs for kernel in kernels) == graph.macs


@pytest.mark.parametrize("read", ["twice", "as the output"])
def test_tensor_that_others_read_is_not_fused_away(read):
    net = Net(1, 8, 4, 4)
    conv = net.conv(8, act=None)
    relu = net.add("relu", conv)
    if read == "twice":
        net.add("add", conv, relu)
    else:
        net.last = conv
    assert kinds(net.graph("g"), "tflite_cpu")[0] == ("conv", "batch_norm")


def test_free_operator_inside_a_chain_is_looked_through():
    net = Net(1, 8, 4, 4)
    net.conv(8, act=None)
    net.add("dropout", p=0.1)
    net.add("relu")
    (kernel,) = fuse(net.graph("g"), "tflite_cpu")
    assert kernel.ops == ("conv_1", "batch_norm_2", "dropout_3", "relu_4")
    assert kernel.cost.reads == kernel.cost.writes == 8 * 16


def test_pad_is_merged_into_the_convolution_which_stays_the_main_operator():
    net = Net(1, 8, 4, 4)
    net.add("pad", padding=(1, 1, 1, 1))
    net.conv(8, act=None)
    (kernel,) = fuse(net.graph("g"), "tflite_gpu")
    assert (kernel.name, kernel.cost.kind) == ("conv_2", "conv1x1")
    assert kernel.cost.reads == 8 * 16


@pytest.mark.parametrize(
    ("groups", "kernel", "out", "kind", "cin", "cout"),
    [(1, 1, 16, "conv1x1", 8, 16), (1, 3, 16, "conv", 8, 16), (8, 3, 8, "depthwise", 1, 1), (2, 3, 16, "grouped", 4, 8)],
)
def test_cost_of_a_convolution_tells_its_kind_and_size(groups, kernel, out, kind, cin, cout):
    net = Net(1, 8, 4, 4)
    net.conv(out, kernel, groups=groups, act=None)
    (result,) = fuse(net.graph("g"), "tflite_cpu")
    cost = result.cost
    assert (cost.kind, cost.in_channels, cost.out_channels, cost.groups, cost.taps, cost.pixels) == (kind, cin, cout, groups, kernel**2, 16)
    assert (cost.reads, cost.writes, cost.weights) == (8 * 16, out * 16, out * cin * kernel**2)


def test_reduction_counts_every_element_it_reads():
    net = Net(1, 8, 4, 4)
    net.add("global_avg_pool", keepdims=True)
    (kernel,) = fuse(net.graph("g"), "tflite_cpu")
    assert (kernel.cost.kind, kernel.cost.groups, kernel.cost.taps, kernel.cost.pixels) == ("reduce", 8, 16, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('id = "t"', "is not a set of fusion rules"),
        ('id = "t"\nsource = "x"\nfree = ["input"]\nrules = [{ start = ["convolution"] }]', "names `convolution`"),
    ],
)
def test_bad_rules_are_refused(tmp_path, monkeypatch, text, message):
    (tmp_path / "bad.toml").write_text(text)
    monkeypatch.setattr("predictors.fusion.RULE_FOLDER", tmp_path)
    load_rules.cache_clear()
    with pytest.raises(StretchError, match=message):
        load_rules("bad")
    load_rules.cache_clear()


def test_sum_is_computed_by_the_kernel_whose_branch_is_ready_last():
    net = Net(1, 8, 4, 4)
    start = net.last
    main = net.conv(8, act=None)
    net.last = start
    side = net.conv(8, act=None)
    net.add("add", main, side)
    (first, second) = fuse(net.graph("g"), "tflite_gpu")
    assert "add" not in {net.graph("g").by_name[name].kind for name in first.ops}
    assert second.ops[-1] == net.last


def test_factor_of_each_channel_is_not_computed_while_the_factors_are_written():
    net = Net(1, 8, 4, 4)
    image = net.conv(8, act=None)
    net.add("global_avg_pool", image, keepdims=True)
    factors = net.conv(8, act="sigmoid")
    net.add("mul", image, factors)
    assert kinds(net.graph("g"), "tflite_gpu")[-2:] == [("conv", "batch_norm", "sigmoid"), ("mul",)]


def test_as_many_elementwise_operators_are_linked_as_follow():
    net = Net(1, 8, 4, 4)
    net.conv(8, act="relu")
    for _ in range(5):
        net.add("sigmoid")
    assert len(fuse(net.graph("g"), "tflite_gpu")) == 1


@pytest.mark.parametrize(
    ("backend", "channels", "size", "kernel", "variant"),
    [
        ("tflite_gpu", 64, 24, 3, "winograd"),
        ("tflite_gpu", 64, 20, 3, ""),  # 25 tiles
        ("tflite_gpu", 60, 24, 3, ""),
        ("tflite_gpu", 64, 24, 5, ""),
        ("tflite_gpu_adreno", 64, 48, 3, ""),
        ("tflite_gpu_adreno", 128, 45, 3, "winograd"),  # 12 × 12 tiles, the last ones cut
        ("tflite_gpu", 64, 1, 1, "fully_connected"),
    ],
)
def test_implementation_is_chosen_by_channels_tiles_and_window(backend, channels, size, kernel, variant):
    net = Net(1, channels, size, size)
    net.conv(channels, kernel, act=None)
    (result,) = fuse(net.graph("g"), backend)
    assert result.cost.variant == variant


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_that_the_processor_lacks_is_a_kernel_of_its_own_and_breaks_the_chain(backend):
    graph = residual()
    kernels = Fuser(load_rules(backend), {"relu"}).fuse(graph)
    alone = [kernel for kernel in kernels if kernel.elsewhere]
    assert [tuple(graph.by_name[name].kind for name in kernel.ops) for kernel in alone] == [("relu",)] * sum(
        op.kind == "relu" for op in graph.ops
    )
    assert all(graph.by_name[name].kind != "relu" for kernel in kernels if not kernel.elsewhere for name in kernel.ops)
    assert sum(kernel.macs for kernel in kernels) == graph.macs


CONV = {"out_channels": 8, "kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "groups": 1, "bias": True}


def graph(*ops, output=None):
    head = [Op("input", "input", (), {"shape": (1, 8, 4, 4)}), Op("conv", "conv", ("input",), CONV)]
    return OpGraph.build("g", [*head, *ops], output or ops[-1].name)


def written_out(shift=3.0, factor=1 / 6, clamp="relu6", multiplied="conv"):
    return [
        Op("shift", "add_scalar", ("conv",), {"value": shift}),
        Op("clamp", clamp, ("shift",)),
        Op("product", "mul", (multiplied, "clamp")),
        Op("sixth", "mul_scalar", ("product",), {"value": factor}),
    ]


def test_hard_swish_and_sigmoid_that_are_written_out_are_one_operator_of_the_same_name_and_shape():
    before = graph(*written_out())
    seen = recognise(before, IDIOMS)
    assert [op.kind for op in seen.graph.ops] == ["input", "conv", "hard_swish"]
    assert seen.graph.by_name["sixth"].inputs == ("conv",)
    assert seen.names("sixth") == ("shift", "clamp", "product", "sixth")
    assert seen.names("conv") == ("conv",)
    # Built again, it has the shapes that it carries.
    assert OpGraph.build("g", seen.graph.ops, "sixth") == seen.graph
    shift, clamp, _, _ = written_out()
    seen = recognise(graph(shift, clamp, Op("sixth", "mul_scalar", ("clamp",), {"value": 0.16667})), IDIOMS)
    assert [op.kind for op in seen.graph.ops] == ["input", "conv", "hard_sigmoid"]


@pytest.mark.parametrize("change", [{"shift": 2.0}, {"factor": 0.2}, {"clamp": "relu"}, {"multiplied": "input"}])
def test_what_differs_in_a_number_or_an_operator_stays(change):
    before = graph(*written_out(**change))
    assert recognise(before, IDIOMS).graph is before


def test_idiom_whose_inside_is_read_elsewhere_or_is_the_result_stays():
    read = graph(*written_out(), Op("again", "add", ("clamp", "sixth")))
    assert recognise(read, IDIOMS).graph is read
    for result in (graph(*written_out()[:3]), graph(*written_out(), output=["sixth", "clamp"])):
        assert recognise(result, IDIOMS).graph is result


def test_kernel_of_an_idiom_names_every_operator_of_the_network():
    (kernel,) = fuse(graph(*written_out()), "tflite_gpu")
    assert kernel.ops == ("conv", "shift", "clamp", "product", "sixth")
    assert [item.ops for item in fuse(graph(*written_out()), "tflite_cpu")] == [("conv",), ("shift", "clamp", "product", "sixth")]


def dense(widths, first=8, size=6):
    """Each layer reads all that came before, side by side, as in DenseNet."""
    net = Net(1, first, size, size)
    known = [net.conv(first, 3)]
    for width in widths:
        known.append(net.conv(width, 3))
        net.add("concat", *known)
    net.conv(8, 3)
    return net.graph("dense")


def test_concatenations_of_a_dense_block_lie_in_the_last_one_unless_somebody_reads_their_own_memory():
    graph = dense((8, 8))
    first, second = (op for op in graph.ops if op.kind == "concat")
    assert copied_parts(graph, {"concat"}, {"input"}, 4) == {first.name: [], second.name: []}
    result = OpGraph.build("results", graph.ops, [first.name, *graph.outputs])
    assert copied_parts(result, {"concat"}, {"input"}, 4) == {first.name: list(first.inputs), second.name: []}


def test_part_that_does_not_end_with_a_block_is_copied_unless_it_is_the_last():
    graph = dense((6,))
    (concat,) = (op for op in graph.ops if op.kind == "concat")
    assert copied_parts(graph, {"concat"}, {"input"}, 4) == {concat.name: []}
    graph = dense((8,), first=6)
    (concat,) = (op for op in graph.ops if op.kind == "concat")
    assert copied_parts(graph, {"concat"}, {"input"}, 4) == {concat.name: list(concat.inputs)}


def test_normalisation_of_what_lies_side_by_side_is_not_folded_into_a_part():
    net = Net(1, 8, 6, 6)
    one = net.conv(8, 3, act=None)
    two = net.conv(8, 3, act=None)
    net.add("concat", one, two)
    net.add("batch_norm", eps=1e-5, momentum=0.1, affine=True)
    net.add("relu")
    kernels = fuse(net.graph("g"), "opencl")
    assert [kernel.cost.kind for kernel in kernels] == ["conv", "conv", "elementwise"]
