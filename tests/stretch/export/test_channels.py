"""Output channels in int8 have the scales of the whole, so that together they are its result to the last bit; partial sums stay in float."""

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
from scheduler.bundle.load import load_bundle
from scheduler.delegates.cpu import CpuDelegate
from scheduler.formats.onnx import OnnxFile
from scheduler.runtime.session import Session
from stretch.capture import capture
from stretch.export.lowering import TAKEN, is_divided, segment_of_part, statements
from stretch.export.onnx import weights_of
from stretch.export.staging import file_entry, write_manifest
from stretch.planning.design.branch_design import BranchDesign, undivided
from stretch.planning.network.segments import cut_segment
from tests.effort import examples
from tests.stretch.channel_networks import Pair, divided, in_channels, networks, small, small_in_channels
from tests.stretch.designs import whole
from tests.stretch.export.written import UNSHRUNK, images_of, in_int8, parts_and_whole, written


def results(bundle, images, delegate=CpuDelegate):
    used = {sub.processor for sub in bundle.manifest.subgraphs}
    with Session(bundle, dict.fromkeys(used, "cpu"), delegates=dict.fromkeys(used, delegate())) as session:
        return [session(x) for x in images]


def clips_what_arrives(result, design):
    """Whether a divided segment begins with a ReLU: ONNX Runtime merges the two roundings beside it where no cut lies between them."""
    starts = {part.start for part in design.segments if not part.whole}
    return any(
        result.graph.by_name[reader].kind in ("relu", "relu6", "clamp") for name in starts for reader in result.graph.consumers[name]
    )


def equal_in_int8(folder, result, design):
    images = images_of(result)
    mine, theirs = parts_and_whole(folder, result, design, images)
    assert all(sub.precision == "int8" for sub in mine.manifest.subgraphs)
    return all(np.array_equal(a, b) for a, b in zip(results(mine, images), results(theirs, images), strict=True))


def test_what_is_left_of_a_concatenation_is_rounded_as_the_concatenation_is(tmp_path):
    torch.manual_seed(0)
    left = nn.Sequential(nn.Conv2d(8, 2, 3, padding=1), nn.GELU())
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Pair(left, nn.Conv2d(8, 6, 1)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    captured = capture(net.eval(), (1, 3, 9, 9), "pair")
    parts = [cut_segment(captured.graph, name, *ends) for name, ends in (("a", ("input", "0")), ("b", ("0", "cat")), ("c", ("cat", "3")))]
    segments = (whole(parts[0]), in_channels(parts[1], "channels", [0, 2, 8]), whole(parts[2]))
    assert equal_in_int8(tmp_path, captured, BranchDesign("pair", "test", segments))


@pytest.mark.slow
@settings(max_examples=examples(25), phases=UNSHRUNK)
@given(data=st.data())
def test_output_channels_of_many_networks_in_int8_are_the_whole_to_the_last_bit(tmp_path_factory, data):
    drawn = data.draw(networks())
    design = data.draw(divided(drawn.graph, joins=("channels",)))
    assume(not clips_what_arrives(drawn, design))
    assert equal_in_int8(tmp_path_factory.mktemp("int8"), drawn, design)


@pytest.mark.slow
@settings(max_examples=examples(8), phases=UNSHRUNK)
@given(data=st.data())
def test_whole_segment_is_put_together_again_from_its_branches(tmp_path_factory, data):
    drawn = data.draw(networks())
    design = data.draw(divided(drawn.graph, joins=("channels",)))
    folder = tmp_path_factory.mktemp("whole")
    parts, one_piece = written(folder / "parts", drawn, design), written(folder / "whole", drawn, undivided(design))
    for part, one in zip(design.segments, one_piece.manifest.subgraphs, strict=True):
        file = OnnxFile(one_piece.file(one.file), onnx.load(one_piece.file(one.file)))
        for sub in parts.manifest.subgraphs:
            if sub.segment != part.name or not is_divided(parts.manifest, sub):
                continue
            onnx_file = OnnxFile(parts.path, segment_of_part(parts, sub))
            assert [(op.kind, op.attrs, op.shape) for op in onnx_file.graph.ops] == [(op.kind, op.attrs, op.shape) for op in file.graph.ops]
            for mine, theirs in zip(weights_of(onnx_file).values(), weights_of(file).values(), strict=True):
                assert mine.keys() == theirs.keys()
                assert all(np.array_equal(mine[key], theirs[key]) for key in mine)


def hidden(folder, processors=("cpu", "gpu")):
    """Blocks whose hidden channels are divided, on two processors."""
    result = small()
    design = small_in_channels(result.graph, ("partial_sums",))
    parts = tuple(
        replace(part, branches=tuple(replace(b, processor=p) for p, b in zip(processors, part.branches, strict=False)))
        for part in design.segments
    )
    return result, written(folder / "sums", result, replace(design, segments=parts))


def test_partial_sum_on_a_processor_of_integers_is_refused(tmp_path):
    result, bundle = hidden(tmp_path, ("cpu", "dsp"))
    with pytest.raises(InfeasibleError, match="cannot be quantised: it computes a partial sum") as caught:
        in_int8(bundle, images_of(result))
    assert "--fp32-fallback" in caught.value.hint
    built = in_int8(bundle, images_of(result), repair=True)
    moved = [sub for sub in built.manifest.subgraphs if sub.name.endswith(".dsp")]
    assert moved
    assert all((sub.processor, sub.precision) == ("cpu", "fp32") for sub in moved)


def test_branches_of_output_channels_state_their_segment_and_others_nothing():
    result = small()
    design = small_in_channels(result.graph)
    stated = statements(result.graph, design)
    assert {name.split(".")[0] for name in stated} == {part.name for part in design.segments if part.join == "channels"}
    assert statements(result.graph, undivided(design)) == {}


def test_file_that_does_not_state_what_it_has_is_refused(tmp_path):
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
def test_channels_in_tflite_are_the_original(tmp_path, join):
    pytest.importorskip("ai_edge_litert")
    from scheduler.delegates.litert import LiteRtDelegate
    from stretch.export.tflite.bundle import export_tflite

    result = small()
    bundle = written(tmp_path / "f", result, small_in_channels(result.graph, (join,)))
    export_tflite(bundle, tmp_path / "t", images_of(result), "random")
    for x, got in zip(images_of(result), results(load_bundle(tmp_path / "t"), images_of(result), LiteRtDelegate), strict=True):
        with torch.inference_mode():
            want = result.module(torch.from_numpy(x)).numpy()
        assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
