import pytest

from predictors.errors import StretchError
from predictors.fusion import IDIOMS, RULE_FOLDER, Fuser, fuse, load_rules, recognise
from predictors.graph import Op, OpGraph
from predictors.in_place import copied_parts
from tests.predictors.networks import Net, convolution, efficientnet_b5, resnet50

BACKENDS = sorted(path.stem for path in RULE_FOLDER.glob("*.toml"))


def built(make, *shape):
    net = Net(*(shape or (1, 8, 4, 4)))
    make(net)
    return net.graph("g")


def residual():
    return built(lambda n: [n.conv(8, 3), n.add("add", n.conv(8, act=None), "input"), n.add("relu")])


def kinds(graph, backend):
    return [tuple(graph.by_name[name].kind for name in kernel.ops) for kernel in fuse(graph, backend)]


CONV = ("conv", "batch_norm")


@pytest.mark.parametrize(
    ("graph", "backend", "kernels"),
    [
        # a residual addition is fused into the convolution if the backend's rules link it
        *((residual(), backend, [(*CONV, "relu"), (*CONV, "add", "relu")]) for backend in ("tflite_gpu", "onnxruntime")),
        # swish is a separate kernel on the CPU
        (built(lambda n: n.conv(8, act="silu")), "tflite_cpu", [CONV, ("silu",)]),
        (built(lambda n: n.conv(8, act="silu")), "tflite_gpu", [(*CONV, "silu")]),
        # a tensor with further readers, or that is an output, is not fused away
        (built(lambda n: n.add("add", (a := n.conv(8, act=None)), n.add("relu", a))), "tflite_cpu", [CONV, ("relu",), ("add",)]),
        (built(lambda n: [a := n.conv(8, act=None), n.add("relu", a), setattr(n, "last", a)]), "tflite_cpu", [CONV, ("relu",)]),
        # a sum is computed by the kernel of the branch that ends last
        (built(lambda n: n.add("add", n.conv(8, act=None), n.conv(8, act=None, source="input"))), "tflite_gpu", [CONV, (*CONV, "add")]),
        # all elementwise operators that follow are linked
        (built(lambda n: [n.conv(8), *(n.add("sigmoid") for _ in range(5))]), "tflite_gpu", [(*CONV, "relu", *["sigmoid"] * 5)]),
        # the product cannot be computed in the kernel that writes the factors per channel
        (
            built(
                lambda n: n.add("mul", (a := n.conv(8, act=None)), n.add("global_avg_pool", a, keepdims=True) and n.conv(8, act="sigmoid"))
            ),
            "tflite_gpu",
            [CONV, ("global_avg_pool",), (*CONV, "sigmoid"), ("mul",)],
        ),
        # a batch norm of a concatenation is not folded into one of the concatenation's inputs
        (
            built(lambda n: [n.add("concat", n.conv(8, 3, act=None), n.conv(8, 3, act=None)), n.add("batch_norm", affine=True, eps=1e-5)]),
            "opencl",
            [CONV, CONV, ("batch_norm",)],
        ),
    ],
)
def test_operators_are_fused_as_the_backends_rules_say(graph, backend, kernels):
    assert kinds(graph, backend) == kernels


@pytest.mark.representatives(9)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [residual, resnet50, efficientnet_b5])
def test_every_operator_is_in_one_kernel_or_free(make, backend):
    graph = make()
    kernels = fuse(graph, backend)
    named = [name for kernel in kernels for name in kernel.ops]
    assert len(named) == len(set(named))
    unnamed = [op for op in graph.ops if op.name not in named]
    assert {op.kind for op in unnamed} <= load_rules(backend).kinds(load_rules(backend).free)
    assert sum(kernel.macs for kernel in kernels) == graph.macs


@pytest.mark.parametrize(
    ("make", "cost"),
    [
        # a free operator inside a chain does not break the chain
        (lambda n: [n.conv(8, act=None), n.add("dropout", p=0.1), n.add("relu")], ("conv1x1", 8, 8, 1, 1, 16, 128, 128, 64)),
        # a pad is merged into the convolution, which stays the main operator
        (lambda n: [n.add("pad", padding=(1, 1, 1, 1)), n.conv(8, act=None)], ("conv1x1", 8, 8, 1, 1, 36, 128, 288, 64)),
        # a reduction counts every element that it reads
        (lambda n: n.add("global_avg_pool", keepdims=True), ("reduce", 1, 1, 8, 16, 1, 128, 8, 0)),
        (lambda n: n.conv(16, act=None), ("conv1x1", 8, 16, 1, 1, 16, 128, 256, 8 * 16)),
        (lambda n: n.conv(16, 3, act=None), ("conv", 8, 16, 1, 9, 16, 128, 256, 8 * 16 * 9)),
        (lambda n: n.conv(8, 3, groups=8, act=None), ("depthwise", 1, 1, 8, 9, 16, 128, 128, 8 * 9)),
        (lambda n: n.conv(16, 3, groups=2, act=None), ("grouped", 4, 8, 2, 9, 16, 128, 256, 4 * 16 * 9)),
    ],
)
def test_cost_of_a_kernel_has_its_kind_and_sizes(make, cost):
    graph = built(make)
    (kernel,) = fuse(graph, "tflite_gpu")
    assert kernel.ops == tuple(op.name for op in graph.ops[1:])
    assert graph.by_name[kernel.name].kind in ("conv", "global_avg_pool")
    assert kernel.cost[:9] == cost


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


@pytest.mark.parametrize(
    ("backend", "channels", "size", "kernel", "variant"),
    [
        ("tflite_gpu", 64, 24, 3, "winograd"),
        ("tflite_gpu", 64, 20, 3, ""),  # 25 tiles
        ("tflite_gpu", 60, 24, 3, ""),
        ("tflite_gpu", 64, 24, 5, ""),
        ("tflite_gpu_adreno", 64, 48, 3, ""),
        ("tflite_gpu_adreno", 128, 45, 3, "winograd"),  # 12 × 12 tiles, the last of each row and column cut
        ("tflite_gpu", 64, 1, 1, "fully_connected"),
    ],
)
def test_implementation_is_chosen_by_channels_tiles_and_window(backend, channels, size, kernel, variant):
    (result,) = fuse(built(lambda n: n.conv(channels, kernel, act=None), 1, channels, size, size), backend)
    assert result.cost.variant == variant


@pytest.mark.parametrize("backend", BACKENDS)
def test_operator_that_the_processor_lacks_is_a_separate_kernel_and_breaks_the_chain(backend):
    graph = residual()
    kernels = Fuser(load_rules(backend), {"relu"}).fuse(graph)
    separate = [kernel for kernel in kernels if kernel.elsewhere]
    assert [kernel.ops for kernel in separate] == [(op.name,) for op in graph.ops if op.kind == "relu"]
    assert all(graph.by_name[name].kind != "relu" for kernel in kernels if not kernel.elsewhere for name in kernel.ops)
    assert sum(kernel.macs for kernel in kernels) == graph.macs


def graph(*ops, output=None):
    head = [Op("input", "input", (), {"shape": (1, 8, 4, 4)}), convolution("conv", "input", 8, bias=True)]
    return OpGraph.build("g", [*head, *ops], output or ops[-1].name)


def written_out(shift=3.0, factor=1 / 6, clamp="relu6", multiplied="conv"):
    return [
        Op("shift", "add_scalar", ("conv",), {"value": shift}),
        Op("clamp", clamp, ("shift",)),
        Op("product", "mul", (multiplied, "clamp")),
        Op("sixth", "mul_scalar", ("product",), {"value": factor}),
    ]


def test_operators_that_compute_hard_swish_or_hard_sigmoid_become_one_operator():
    before = graph(*written_out())
    recognised = recognise(before, IDIOMS)
    assert [(op.kind, op.inputs) for op in recognised.graph.ops] == [("input", ()), ("conv", ("input",)), ("hard_swish", ("conv",))]
    assert (recognised.names("sixth"), recognised.names("conv")) == (("shift", "clamp", "product", "sixth"), ("conv",))
    # A graph built from the operators has the same shapes.
    assert OpGraph.build("g", recognised.graph.ops, "sixth") == recognised.graph
    shift, clamp, _, _ = written_out()
    recognised = recognise(graph(shift, clamp, Op("sixth", "mul_scalar", ("clamp",), {"value": 0.16667})), IDIOMS)
    assert [op.kind for op in recognised.graph.ops] == ["input", "conv", "hard_sigmoid"]
    # the fused kernel names all original operators
    names = ("shift", "clamp", "product", "sixth")
    for backend, kernels in {"tflite_gpu": [("conv", *names)], "tflite_cpu": [("conv",), names]}.items():
        assert [kernel.ops for kernel in fuse(before, backend)] == kernels


@pytest.mark.parametrize(
    "before",
    [
        *(graph(*written_out(**change)) for change in ({"shift": 2.0}, {"factor": 0.2}, {"clamp": "relu"}, {"multiplied": "input"})),
        # an intermediate result is read elsewhere or returned
        graph(*written_out(), Op("again", "add", ("clamp", "sixth"))),
        *(graph(*written_out()[:3]), graph(*written_out(), output=["sixth", "clamp"])),
    ],
)
def test_operators_that_differ_from_an_idiom_or_have_other_readers_stay_unchanged(before):
    assert recognise(before, IDIOMS).graph is before


def dense(widths, first=8, size=6):
    """Each layer reads the concatenated outputs of all earlier layers, as in DenseNet."""
    net = Net(1, first, size, size)
    outputs = [net.conv(first, 3)]
    for width in widths:
        outputs.append(net.conv(width, 3))
        net.add("concat", *outputs)
    net.conv(8, 3)
    return net.graph("dense")


def copies(graph):
    return list(copied_parts(graph, {"concat"}, {"input"}, 4).values())


def test_input_of_a_concatenation_is_copied_if_its_memory_is_read_or_it_ends_inside_a_block():
    graph = dense((8, 8))
    first = next(op for op in graph.ops if op.kind == "concat")
    assert copies(graph) == [[], []]
    assert copies(OpGraph.build("results", graph.ops, [first.name, *graph.outputs])) == [list(first.inputs), []]
    graph = dense((8,), first=6)
    assert copies(graph) == [list(op.inputs) for op in graph.ops if op.kind == "concat"]
    assert copies(dense((6,))) == [[]]
