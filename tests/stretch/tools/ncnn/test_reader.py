"""Reading of ncnn networks."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.fusion import fuse
from predictors.graph import OpGraph
from stretch.stages.network import read_graph
from stretch.tools.ncnn.reader import parse_layers, read_ncnn

#: A network with a branch, a fused activation, a pooling that rounds up and a head.
NETWORK = """7767517
10 11
Input            data  0 1 data 0=15 1=15 2=3
Convolution      conv1 1 1 data a 0=8 1=3 3=2 4=1 5=1 6=216 9=1
Split            split 1 2 a a0 a1
ConvolutionDepthWise dw 1 1 a0 b 0=8 1=3 4=-233 5=1 6=72 7=8 9=2 -23310=1,1.000000e-01
BinaryOp         add   2 1 b a1 c 0=0
Pooling          pool  1 1 c d 1=3 2=2
Slice            cut   1 2 d e f -23300=2,3,-233 1=0
Concat           cat   2 1 e f g 0=0
Pooling          mean  1 1 g h 0=1 4=1
InnerProduct     fc    1 1 h out -23330=4,1,5,1,1 0=5 1=1 2=40
"""
OPEN = "7767517\n2 2\nInput x 0 1 x\nReLU r 1 1 x y\n"


def write(tmp_path, text):
    path = tmp_path / "net.param"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


HEAD = "7767517\n2 2\n"
INPUT = "Input data 0 1 data 0=8 1=8 2=3\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        # layers that do not fit
        (HEAD + INPUT + "ReLU r 1 1 nowhere y", "line 4.*reads `nowhere`"),
        (HEAD + INPUT + "Convolution c 1 1 data y 0=4 1=9", "line 4.*does not fit"),
        (HEAD + INPUT + "Convolution c 1 1 data y 0=4 1=3 3=0", "line 4.*does not fit"),
        (HEAD + INPUT + "Convolution c 1 1 data y -23330=4,3,8,8,4 0=4 1=3", r"states the output \(1, 4, 8, 8\)"),
        (HEAD + INPUT + "Convolution c 1 1 data y 0=4 1=3 9=77", "activation 77"),
        (HEAD + INPUT + "Slice s 1 2 data y z -23300=2,5,-233 1=0", "line 4.*does not fit"),
        (HEAD + INPUT + "Reshape r 1 1 data y 0=5 1=-1", "cannot be seen"),
        (HEAD + INPUT + "Input b 0 1 b 0=8 1=8 2=3", "second input"),
        # texts that are damaged
        ("", "first line is not 7767517"),
        ("7767518\n1 1\n" + INPUT, "first line is not 7767517"),
        ("7767517\n1\n" + INPUT, "line 2 is not"),
        ("7767517\n-1 1\n" + INPUT, "line 2 is not"),
        ("7767517\n99999999 1\n" + INPUT, "the limit is"),
        (HEAD + INPUT, "has 1 layers, line 2 states 2"),
        (HEAD + INPUT + "Conv\n", "line 4 is no layer"),
        (HEAD + INPUT + "Conv c 1 1 data\n", "states 1 and 1 blobs and has 1"),
        (HEAD + INPUT + "Conv c 1 1 data out x=1\n", "line 4 is no layer"),
        (HEAD + INPUT + "Conv c 1 1 data out 0=nan\n", "line 4 is no layer"),
        (HEAD + INPUT + "Conv c 1 1 data out 0=1e99\n", "no finite number"),
        (HEAD + INPUT + "Conv c 1 1 data out -23300=3,1,2\n", "states 3 items and has 2"),
        (b"\xff\xfe\x00", "it is no text"),
        (None, "cannot read"),
    ],
)
def test_damaged_or_contradictory_file_is_refused_with_its_line(tmp_path, text, reason):
    with pytest.raises(StretchError, match=reason):
        read_ncnn(tmp_path / "other.param" if text is None else write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        (OPEN, None, "states no size"),
        *((NETWORK, shapes, "whose one input has no name") for shapes in ({"x": (1, 3, 9, 9)}, [(1, 3, 9, 9)])),
    ],
)
def test_missing_size_or_conflicting_shape_is_refused(tmp_path, text, shapes, reason):
    with pytest.raises(StretchError, match=reason):
        read_ncnn(write(tmp_path, text), shapes)


def test_open_size_can_be_given_and_a_network_is_read_for_prediction(tmp_path):
    path = write(tmp_path, OPEN)
    assert read_ncnn(path, (1, 3, 9, 9)).by_name["r"].shape == (1, 3, 9, 9)
    write(tmp_path, "7767517\n2 2\nInput x 0 1 x 0=8 1=8 2=3\nConvolution c 1 1 x y 0=4 1=1 5=1 6=12\n")
    read = read_graph(str(path))
    assert (read.graph.macs, read.refusal) == (64 * 12, None)


def test_layers_become_operators_with_their_activations(tmp_path):
    graph = read_ncnn(write(tmp_path, NETWORK))
    kinds = " ".join(op.kind for op in graph.ops)
    assert kinds == "input conv relu conv leaky_relu add max_pool slice slice concat global_avg_pool linear"
    # ⌈(8 − 3) / 2⌉ + 1 rows: every pixel is in a window
    assert graph.by_name["pool"].shape == (1, 8, 4, 4)
    assert (graph.macs, graph.params) == (64 * 8 * 27 + 64 * 8 * 9 + 40, 216 + 8 + 72 + 8 + 40 + 5)
    assert OpGraph.from_json(graph.to_json()) == graph
    assert sum(kernel.macs for kernel in fuse(graph, "ncnn")) == graph.macs


def test_attention_counts_its_projections_and_products(tmp_path):
    text = "7767517\n4 5\nInput x 0 1 x 0=8 1=8 2=3\nReshape r 1 1 x t 0=6 1=32\nMultiHeadAttention m 1 1 t y 0=6 1=2 2=36\nGemm g 1 1 y z 3=1 5=1 6=1 8=9 9=6 10=4\n"
    graph = read_ncnn(write(tmp_path, text))
    assert graph.macs == 4 * 32 * 36 + 2 * 32 * 32 * 6 + 32 * 6 * 9
    assert sum(op.kind == "opaque" and op.attrs["kernel"] == "matmul" for op in graph.ops) == 2


def test_unknown_layer_is_opaque_and_several_outputs_are_joined(tmp_path):
    text = "7767517\n3 3\nInput x 0 1 x 0=8 1=8 2=3\nWarp w 1 1 x y -23330=4,3,4,4,3\nReLU r 1 1 x z\n"
    graph = read_ncnn(write(tmp_path, text))
    assert (graph.by_name["w"].kind, graph.by_name["w"].attrs["variant"], graph.by_name["w"].shape) == ("opaque", "warp", (1, 3, 4, 4))
    assert graph.by_name[graph.output].inputs == ("w", "r")


def test_parameters_and_lists_are_read_by_their_numbers():
    _, layer = parse_layers(HEAD + INPUT + "Slice s 1 1 data out -23330=4,3,8,8,3 -23300=2,-233,5 1=0 2=1.5e+00\n", "f")
    assert (layer.kind, layer.name, layer.inputs, layer.outputs) == ("Slice", "s", ("data",), ("out",))
    assert (layer.params, layer.shapes, layer.line) == ({0: (-233, 5), 1: 0, 2: 1.5}, ((1, 3, 8, 8),), 4)
    assert (layer.integers(0), layer.integer(1, 7), layer.integer(9, 7)) == ((-233, 5), 0, 7)


@given(st.text(alphabet="Iab 0123=,.-e\n", max_size=60))
def test_any_text_gives_the_stated_number_of_layers_or_is_refused(text):
    with contextlib.suppress(StretchError):
        layers = parse_layers(HEAD + text, "f")
        assert len(layers) == 2
        assert all(len(layer.shapes) in (0, len(layer.outputs)) for layer in layers)
