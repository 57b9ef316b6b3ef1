"""Bands in int8 have the scales of the whole, so that together they are its result to the last bit."""

import shutil

import msgspec
import numpy as np
import onnx
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.delegates.cpu import CpuDelegate
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.formats.onnx import OnnxFile, open_onnx
from scheduler.runtime.session import Session
from stretch.capture import capture
from stretch.export.lowering import segment_of_band
from stretch.export.onnx import WHOLE_PADDING
from stretch.export.staging import file_entry, write_manifest
from stretch.export.tflite.bundle import FILE, write_tflite
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign, undivided
from stretch.planning.network.segments import cut_segment
from tests.effort import examples
from tests.stretch.band_networks import BLOCKS, WIDTH, Residual, banded, networks
from tests.stretch.designs import whole
from tests.stretch.export.written import UNSHRUNK, images_of, parts_and_whole, written

pytest.importorskip("ai_edge_litert")


def as_tflite(bundle):
    """As `export_tflite` writes it, without its comparison: small random networks lose more in int8 than it allows."""
    folder = bundle.path.parent / f"{bundle.path.name}_tflite"
    shutil.copytree(bundle.path, folder)
    (folder / FILE).write_bytes(write_tflite(bundle))
    files = bundle.manifest.files | {FILE: file_entry(folder / FILE)}
    write_manifest(folder, msgspec.structs.replace(bundle.manifest, tflite=FILE, files=files))
    return load_bundle(folder)


def ends(bundle: Bundle):
    """What each segment writes, joined where branches meet."""
    joined = {join.segment: join.output for join in bundle.manifest.joins}
    return list({sub.segment: joined.get(sub.segment, sub.outputs[0]) for sub in bundle.manifest.subgraphs}.values())


def results(bundle: Bundle, delegate, images):
    """The end of every segment for each image: behind a pooling over the image a step of a scale would not show."""
    used = {sub.processor for sub in bundle.manifest.subgraphs}
    with Session(bundle, dict.fromkeys(used, "cpu"), delegates=dict.fromkeys(used, delegate)) as session:
        return [[tensors[name] for name in ends(bundle)] for tensors in map(session.tensors, images)]


def same_bits(bands, whole, delegate, images):
    """Whether two bundles give the same numbers on one delegate wherever segments end."""
    pairs = zip(results(bands, delegate(), images), results(whole, delegate(), images), strict=True)
    return all(np.array_equal(a, b) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True))


@pytest.mark.slow
@settings(max_examples=examples(6))
@given(data=st.data())
def test_whole_segment_is_put_together_again_from_any_of_its_bands(tmp_path_factory, data):
    drawn = data.draw(networks())
    design = data.draw(banded(drawn.graph))
    folder = tmp_path_factory.mktemp("whole")
    bands, whole = written(folder / "bands", drawn, design), written(folder / "whole", drawn, undivided(design))
    shapes = {tensor.name: tensor.shape for tensor in bands.manifest.tensors}
    for part, one in zip(design.segments, whole.manifest.subgraphs, strict=True):
        wanted = open_onnx(whole.file(one.file)).graph
        for sub in bands.manifest.subgraphs:
            if sub.segment == part.name and not part.whole:
                file = bands.file(sub.file)
                graph = OnnxFile(file, segment_of_band(onnx.load(file), shapes[sub.input], bands.path)).graph
                # operators that nothing reads are in no band
                assert [(op.kind, op.attrs, op.shape) for op in graph.ops] == [(op.kind, op.attrs, op.shape) for op in wanted.ops]


def equal_in_int8(folder, result, design):
    """Whether bands give what the undivided segments give, on ONNX Runtime's integers and on LiteRT's."""
    images = images_of(result)
    bands, whole = parts_and_whole(folder, result, design, images)
    runs = same_bits(bands, whole, CpuDelegate, images), same_bits(as_tflite(bands), as_tflite(whole), LiteRtDelegate, images)
    return runs == (True, True)


def overhangs(graph):
    """Whether a mean has windows that overhang the last row and its padding: TFLite computes it in reals, and bands without such windows not."""

    def beyond(op):
        kernel, stride, (top, _, bottom, _) = op.attrs["kernel"][0], op.attrs["stride"][0], op.attrs["padding"]
        return (op.shape[2] - 1) * stride + kernel > graph.input_shapes(op)[0][2] + top + bottom

    return any(op.kind == "avg_pool" and beyond(op) for op in graph.ops)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [tuple(BLOCKS), *((kind, "same") for kind in sorted(BLOCKS))], ids=str)
@settings(max_examples=examples(10), phases=UNSHRUNK)
@given(data=st.data())
def test_bands_of_each_kind_of_block_in_int8_are_the_whole_to_the_last_bit(tmp_path_factory, kinds, data):
    drawn = data.draw(networks(kinds))
    assume(not overhangs(drawn.graph))
    assert equal_in_int8(tmp_path_factory.mktemp("int8"), drawn, data.draw(banded(drawn.graph)))


def in_bands(net, end, size=15, lower=None):
    """A network whose operators behind the first up to `end` are in two bands; the lower one is half of the rows, or `lower` of them."""
    captured = capture(net.eval(), (1, 3, size, size), "net")
    segment = cut_segment(captured.graph, "s1", "0", end)
    rows = segment.graph.by_name[end].shape[2]
    first = rows - lower if lower else rows // 2
    bounds = (("cpu", (0, first)), ("dsp", (first, rows)))
    branches = tuple(BranchScale(name, segment.depth, segment.width, rows=band) for name, band in bounds)
    parts = [
        whole(cut_segment(captured.graph, "stem", "input", "0")),
        SegmentDesign("s1", segment.start, segment.end, branches, "rows"),
        whole(cut_segment(captured.graph, "head", segment.end, captured.graph.output)),
    ]
    return captured, BranchDesign("net", "test", tuple(parts))


def net_of(*body):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3, padding=1), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 5))


@pytest.mark.representatives(2)
@pytest.mark.parametrize("counts", [True, False])
@pytest.mark.parametrize("stride", [1, 2])
def test_padded_means_of_bands_are_rounded_as_those_of_the_whole(tmp_path, stride, counts):
    net = net_of(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.AvgPool2d(3, stride, 1, count_include_pad=counts))
    assert equal_in_int8(tmp_path, *in_bands(net, "2"))


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2, ceil_mode=True), nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)])
def test_band_of_a_window_that_the_last_row_cuts_short_is_that_of_the_whole(tmp_path, pool):
    assert equal_in_int8(tmp_path, *in_bands(net_of(pool, nn.Conv2d(WIDTH, WIDTH, 1)), "2", 17, 1))


def test_pooling_window_larger_than_its_input_is_written_and_read(tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.AvgPool2d(3, 2, ceil_mode=True), nn.Flatten(), nn.Linear(WIDTH, 5)).eval()
    captured = capture(net, (1, 3, 4, 4), "net")
    segment = cut_segment(captured.graph, "all", "input", captured.graph.output)
    bundle = written(tmp_path / "b", captured, BranchDesign("net", "test", (whole(segment),)))
    (image,) = images_of(captured, 1)
    with Session(bundle, {"cpu": "cpu"}) as session, torch.inference_mode():
        np.testing.assert_allclose(session(image), net(torch.from_numpy(image)).numpy(), atol=1e-6)


def test_padding_that_is_none_is_refused(tmp_path):
    body = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3, padding=1))
    bundle = written(tmp_path / "b", *in_bands(net_of(Residual(body)), "add", 16))
    (band,) = [sub for sub in bundle.manifest.subgraphs if sub.name == "s1.dsp"]
    model = onnx.load(bundle.file(band.file))
    for entry in (entry for node in model.graph.node for entry in node.metadata_props if entry.key == WHOLE_PADDING):
        entry.value = "[1]"
    with pytest.raises(StretchError, match=r"s1\.dsp\.onnx states no padding in `stretch\.whole_padding`"):
        segment_of_band(model, (1, WIDTH, 16, 16), bundle.path / band.file)
