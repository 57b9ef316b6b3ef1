"""Bands and output channels in int8 share the scales of the whole and equal its result bit by bit; partial sums stay in float."""

import shutil
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from predictors.errors import InfeasibleError, StretchError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.formats.onnx import OnnxFile
from scheduler.runtime.session import Session
from stretch.export.lowering import TAKEN, is_divided, segment_of_band, segment_of_part, statements
from stretch.export.onnx import WHOLE_PADDING, weights_of
from stretch.export.staging import file_entry, write_manifest
from stretch.export.tflite import FILE, export_tflite, write_tflite
from stretch.network.capture import capture
from stretch.planning.design.branch_design import BranchDesign, undivided
from stretch.planning.network.segments import cut_segment
from tests.effort import examples
from tests.stretch.band_networks import BLOCKS, WIDTH, Residual, banded, networks
from tests.stretch.channel_networks import Pair, divided, in_channels, small, small_in_channels
from tests.stretch.channel_networks import networks as channel_networks
from tests.stretch.designs import in_bands, whole
from tests.stretch.export.written import UNSHRUNK, images_of, in_int8, parts_and_whole, written


def as_tflite(bundle):
    """The bundle with a TFLite file but without `export_tflite`'s comparison, which small random networks fail in int8."""
    folder = bundle.path.parent / f"{bundle.path.name}_tflite"
    shutil.copytree(bundle.path, folder)
    (folder / FILE).write_bytes(write_tflite(bundle))
    files = bundle.manifest.files | {FILE: file_entry(folder / FILE)}
    write_manifest(folder, msgspec.structs.replace(bundle.manifest, tflite=FILE, files=files))
    return load_bundle(folder)


def ends(bundle: Bundle):
    """Output of each segment after its join; a global pooling later in the network would hide differences of one step."""
    joined = {join.segment: join.output for join in bundle.manifest.joins}
    return list({sub.segment: joined.get(sub.segment, sub.outputs[0]) for sub in bundle.manifest.subgraphs}.values())


def results(bundle, images, delegate=CpuDelegate, names=None):
    """Tensors with these names (default: the outputs) for each image."""
    used = {sub.processor for sub in bundle.manifest.subgraphs}
    with Session(bundle, dict.fromkeys(used, "cpu"), delegates=dict.fromkeys(used, delegate())) as session:
        return [[tensors[name].copy() for name in names or bundle.manifest.outputs] for tensors in map(session.tensors, images)]


def same_bits(bands, whole, delegate, images):
    divided_results, whole_results = (results(bundle, images, delegate, ends(bundle)) for bundle in (bands, whole))
    return all(np.array_equal(a, b) for pair in zip(divided_results, whole_results, strict=True) for a, b in zip(*pair, strict=True))


def bands_equal_in_int8(folder, result, design):
    """Whether bands equal the undivided segments with the integer kernels of ONNX Runtime and of LiteRT."""
    pytest.importorskip("ai_edge_litert")
    images = images_of(result)
    bands, whole = parts_and_whole(folder, result, design, images)
    runs = same_bits(bands, whole, CpuDelegate, images), same_bits(as_tflite(bands), as_tflite(whole), LiteRtDelegate, images)
    return runs == (True, True)


def overhangs(graph):
    """Whether pooling windows extend beyond the last row and its padding: TFLite then computes in float, but in int8 for other bands."""

    def has_overhang(op):
        kernel, stride, (top, _, bottom, _) = op.attrs["kernel"][0], op.attrs["stride"][0], op.attrs["padding"]
        return (op.shape[2] - 1) * stride + kernel > graph.input_shapes(op)[0][2] + top + bottom

    return any(op.kind == "avg_pool" and has_overhang(op) for op in graph.ops)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [tuple(BLOCKS), *((kind, "same") for kind in sorted(BLOCKS))], ids=str)
@settings(max_examples=examples(10), phases=UNSHRUNK)
@given(data=st.data())
def test_int8_bands_of_each_kind_of_block_equal_the_whole_bit_by_bit(tmp_path_factory, kinds, data):
    drawn = data.draw(networks(kinds))
    assume(not overhangs(drawn.graph))
    assert bands_equal_in_int8(tmp_path_factory.mktemp("int8"), drawn, data.draw(banded(drawn.graph)))


def cut_in_bands(net, end, size=15, lower=None):
    """A network with two bands from its second operator to `end`; the lower band has half of the rows or `lower` rows."""
    captured = capture(net.eval(), (1, 3, size, size), "net")
    segment = cut_segment(captured.graph, "s1", "0", end)
    first = segment.graph.by_name[end].shape[2] - lower if lower else None
    parts = [
        whole(cut_segment(captured.graph, "stem", "input", "0")),
        in_bands(segment, ("cpu", "dsp"), first),
        whole(cut_segment(captured.graph, "head", segment.end, captured.graph.output)),
    ]
    return captured, BranchDesign("net", "test", tuple(parts))


def net_of(*body):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 5))


@pytest.mark.representatives(2)
@pytest.mark.parametrize(
    ("body", "size"),
    [
        # average pooling with padding
        *(([3, nn.AvgPool2d(3, stride, 1, count_include_pad=counts)], (15,)) for stride in (1, 2) for counts in (True, False)),
        # the last row truncates a window
        *(([nn.AvgPool2d(2, ceil_mode=True, count_include_pad=counts), 1], (17, 1)) for counts in (True, False)),
    ],
)
def test_average_pooling_of_bands_is_rounded_like_that_of_the_whole(tmp_path, body, size):
    layers = [nn.Conv2d(WIDTH, WIDTH, part, padding=part // 2) if isinstance(part, int) else part for part in body]
    assert bands_equal_in_int8(tmp_path, *cut_in_bands(net_of(*layers), "2", *size))


def test_pooling_window_larger_than_its_input_is_written_and_read(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.AvgPool2d(3, 2, ceil_mode=True), nn.Flatten(), nn.Linear(WIDTH, 5)).eval()
    captured = capture(net, (1, 3, 4, 4), "net")
    segment = cut_segment(captured.graph, "all", "input", captured.graph.output)
    bundle = written(tmp_path / "b", captured, BranchDesign("net", "test", (whole(segment),)))
    (image,) = images_of(captured, 1)
    with Session(bundle, {"cpu": "cpu"}) as session, torch.inference_mode():
        np.testing.assert_allclose(session(image), net(torch.from_numpy(image)).numpy(), atol=1e-6)


def test_unreadable_padding_property_is_refused(tmp_path):
    body = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1))
    bundle = written(tmp_path / "b", *cut_in_bands(net_of(Residual(body)), "add", 16))
    (band,) = [sub for sub in bundle.manifest.subgraphs if sub.name == "s1.dsp"]
    model = onnx.load(bundle.file(band.file))
    for entry in (entry for node in model.graph.node for entry in node.metadata_props if entry.key == WHOLE_PADDING):
        entry.value = "[1]"
    with pytest.raises(StretchError, match=r"s1\.dsp\.onnx states no padding in `stretch\.whole_padding`"):
        segment_of_band(model, (1, WIDTH, 16, 16), bundle.path / band.file)


def starts_with_relu(result, design):
    """Whether a divided segment starts with a ReLU: without a cut, ONNX Runtime merges the two roundings around it."""
    starts = {part.start for part in design.segments if not part.whole}
    return any(
        result.graph.by_name[reader].kind in ("relu", "relu6", "clamp") for name in starts for reader in result.graph.consumers[name]
    )


def equal_in_int8(folder, result, design):
    images = images_of(result)
    parts, whole_bundle = parts_and_whole(folder, result, design, images)
    assert all(sub.precision == "int8" for sub in parts.manifest.subgraphs)
    np.testing.assert_array_equal(results(parts, images), results(whole_bundle, images))


def test_part_of_a_concatenation_is_rounded_like_the_concatenation(tmp_path):
    torch.manual_seed(0)
    left = nn.Sequential(nn.Conv2d(8, 2, 3, padding=1), nn.GELU())
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Pair(left, nn.Conv2d(8, 6, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    captured = capture(net.eval(), (1, 3, 9, 9), "pair")
    parts = [cut_segment(captured.graph, name, *ends) for name, ends in (("a", ("input", "0")), ("b", ("0", "cat")), ("c", ("cat", "3")))]
    segments = (whole(parts[0]), in_channels(parts[1], "channels", [0, 2, 8]), whole(parts[2]))
    equal_in_int8(tmp_path, captured, BranchDesign("pair", "test", segments))


@pytest.mark.slow
@settings(max_examples=examples(25), phases=UNSHRUNK)
@given(data=st.data())
def test_int8_output_channels_of_many_networks_equal_the_whole_bit_by_bit(tmp_path_factory, data):
    drawn = data.draw(channel_networks())
    design = data.draw(divided(drawn.graph, joins=("channels",)))
    assume(not starts_with_relu(drawn, design))
    equal_in_int8(tmp_path_factory.mktemp("int8"), drawn, design)


def in_rows(data):
    drawn = data.draw(networks())
    return drawn, data.draw(banded(drawn.graph))


def in_output_channels(data):
    drawn = data.draw(channel_networks())
    return drawn, data.draw(divided(drawn.graph, joins=("channels",)))


def operators_of(graph):
    return [(op.kind, op.attrs, op.shape) for op in graph.ops]


@pytest.mark.slow
@pytest.mark.parametrize("draw", [in_rows, in_output_channels])
@settings(max_examples=examples(8), phases=UNSHRUNK)
@given(data=st.data())
def test_whole_segment_is_reconstructed_from_any_of_its_branches(tmp_path_factory, draw, data):
    drawn, design = draw(data)
    folder = tmp_path_factory.mktemp("whole")
    parts, undivided_bundle = written(folder / "parts", drawn, design), written(folder / "whole", drawn, undivided(design))
    shapes = {tensor.name: tensor.shape for tensor in parts.manifest.tensors}
    for part, one in zip(design.segments, undivided_bundle.manifest.subgraphs, strict=True):
        wanted = OnnxFile(undivided_bundle.file(one.file), onnx.load(undivided_bundle.file(one.file)))
        for sub in parts.manifest.subgraphs:
            if sub.segment != part.name or part.whole or (draw is in_output_channels and not is_divided(parts.manifest, sub)):
                continue
            file = parts.file(sub.file)
            band = draw is in_rows
            model = segment_of_band(onnx.load(file), shapes[sub.input], parts.path) if band else segment_of_part(parts, sub)
            rebuilt = OnnxFile(file, model)
            # bands have no operators without readers
            assert operators_of(rebuilt.graph) == operators_of(wanted.graph)
            for actual, expected in zip(weights_of(rebuilt).values(), weights_of(wanted).values(), strict=True):
                assert actual.keys() == expected.keys()
                assert all(np.array_equal(actual[key], expected[key]) for key in actual)


def test_partial_sum_on_an_int8_processor_is_refused(tmp_path):
    """The hidden channels of the blocks are divided between the CPU and the DSP."""
    result = small()
    design = small_in_channels(result.graph, ("partial_sums",))
    paired = [zip(("cpu", "dsp"), part.branches, strict=False) for part in design.segments]
    parts = (
        replace(part, branches=tuple(replace(b, processor=p) for p, b in row)) for part, row in zip(design.segments, paired, strict=True)
    )
    bundle = written(tmp_path / "sums", result, replace(design, segments=tuple(parts)))
    with pytest.raises(InfeasibleError, match="cannot be quantised: it computes a partial sum") as caught:
        in_int8(bundle, images_of(result))
    assert "--fp32-fallback" in caught.value.hint
    moved = [sub for sub in in_int8(bundle, images_of(result), repair=True).manifest.subgraphs if sub.name.endswith(".dsp")]
    assert {(sub.processor, sub.precision) for sub in moved} == {("cpu", "fp32")}


def test_only_branches_of_output_channels_state_their_segment():
    graph = small().graph
    design = small_in_channels(graph)
    stated = {name.split(".")[0] for name in statements(graph, design)}
    assert stated == {part.name for part in design.segments if part.join == "channels"}
    assert statements(graph, undivided(design)) == {}


def test_file_with_unreadable_channels_property_is_refused(tmp_path):
    result = small()
    bundle = written(tmp_path / "c", result, small_in_channels(result.graph, ("channels",)))
    sub = next(sub for sub in bundle.manifest.subgraphs if is_divided(bundle.manifest, sub))
    model = onnx.load(bundle.file(sub.file))
    for entry in model.metadata_props:
        if entry.key == TAKEN:
            entry.value = '{"conv": 3}'
    file = bundle.file(sub.file)
    file.write_bytes(model.SerializeToString())
    files = bundle.manifest.files | {sub.file: file_entry(file)}
    write_manifest(bundle.path, msgspec.structs.replace(bundle.manifest, files=files))
    with pytest.raises(StretchError, match=r"states nothing readable in `stretch\.taken`"):
        segment_of_part(load_bundle(bundle.path), sub)


@pytest.mark.slow
@pytest.mark.parametrize("join", ["channels", "partial_sums"])
def test_channels_in_tflite_equal_the_original(tmp_path, join):
    pytest.importorskip("ai_edge_litert")
    result = small()
    bundle = written(tmp_path / "f", result, small_in_channels(result.graph, (join,)))
    export_tflite(bundle, tmp_path / "t", images_of(result), "random")
    for x, (got,) in zip(images_of(result), results(load_bundle(tmp_path / "t"), images_of(result), LiteRtDelegate), strict=True):
        with torch.inference_mode():
            want = result.module(torch.from_numpy(x)).numpy()
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
