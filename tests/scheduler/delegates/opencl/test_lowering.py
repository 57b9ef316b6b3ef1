"""Subgraphs on an OpenCL device: kernel launches for ONNX nodes, memory layout of tensors, and tiles."""

import os
import re
import signal
from contextlib import closing
from dataclasses import replace
from math import prod

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores
from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl import compiled as invocations
from scheduler.delegates.opencl.device import LIBRARY_VARIABLE, Traits, open_device, pinned_bytes, pinned_is_faster
from scheduler.delegates.opencl.graph import fuse, read_graph, simplify
from scheduler.delegates.opencl.launch import Blocking, Launch
from scheduler.delegates.opencl.schedule import KernelProblem, Schedules, rank_tiles
from scheduler.delegates.process import ProcessDelegate
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.faults.policy import FaultPolicy
from scheduler.memory import MemoryPlan
from scheduler.runtime.session import Session
from tests.scheduler.bundles import two_branches
from tests.scheduler.delegates.opencl import networks


def simplified(path):
    graph = read_graph(path)
    simplify(graph)
    return graph


SHAPE, PADS, ONE, THREE = (1, 16, 9, 9), np.array([0, 0, 1, 2, 0, 0, 0, 1]), {"kernel_shape": [1, 1]}, {"kernel_shape": [3, 3]}
NORM = {key: np.abs(networks.numbers(3, seed=i)) + 0.5 for i, key in enumerate("sbmv")}
W = networks.numbers(2, 3, 3, 3)


@pytest.mark.parametrize(
    ("nodes", "shape", "weights", "kinds"),
    [
        # a batch norm without a convolution before it becomes scale and shift
        ([("BatchNormalization", ["x", *NORM], "y", {})], (1, 3, 4, 4), NORM, "ScaleShift"),
        # a pad with zeros is merged into the convolution; a pad with another value, or before a max pool, stays
        *(
            ([("Pad", ["x", "p", "v"], "p1", {}), node], (1, 3, 6, 6), {"p": PADS, "v": np.float32(value), "w": W}, kinds)
            for node, value, kinds in (
                (networks.conv("p1", "y", "w", pads=[1, 0, 0, 1], **THREE), 0, "Conv"),
                (networks.conv("p1", "y", "w", **THREE), 1, "Pad Conv"),
                (("MaxPool", ["p1"], "y", THREE), 0, "Pad MaxPool"),
            )
        ),
        # identities are removed, and constants are computed once
        (
            [
                *(("Identity", ["x"], "i", {}), ("Identity", ["i"], "j", {}), ("Add", ["one", "one"], "two", {})),
                *(("Mul", ["j", "two"], "m", {}), ("Identity", ["m"], "y", {})),
            ],
            (1, 3),
            {"one": np.ones(3, np.float32)},
            "Mul Identity",
        ),
        # reshape, transpose and reshape become one channel shuffle
        (
            [
                *(("Relu", ["x"], "r", {}), ("Reshape", ["r", "split"], "g", {})),
                *(("Transpose", ["g"], "t", {"perm": [0, 2, 1, 3, 4]}), ("Reshape", ["t", "whole"], "y", {})),
            ],
            (2, 12, 5, 5),
            {"split": np.array([2, 3, 4, 5, 5]), "whole": np.array([2, 12, 5, 5])},
            "Relu ChannelShuffle",
        ),
        # an input of a concatenation that ends inside a block is copied
        (
            [networks.conv("x", "a", "w1", **ONE), networks.conv("x", "b", "w2", **ONE), ("Concat", ["a", "b", "x"], "y", {"axis": 1})],
            (2, 4, 3, 5),
            {"w1": networks.numbers(3, 4, 1, 1), "w2": networks.numbers(5, 4, 1, 1)},
            "Conv Conv Concat",
        ),
    ],
)
def test_graph_is_simplified_and_computes_the_same(tmp_path, nodes, shape, weights, kinds):
    read = {name: weights[name] for name in weights if any(name in inputs for _, inputs, _, _ in nodes)}
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": shape}, ["y"], read)
    assert " ".join(node.op for node in simplified(path).nodes) == kinds
    # numpy is the oracle: ONNX Runtime 1.31 merges a pad into a max pool, which then ignores the pad's zeros.
    assert networks.error(path, oracle=ReferenceDelegate) <= 1e-5


def test_merged_and_removed_nodes_are_named_and_outputs_may_be_inputs_or_have_readers(tmp_path):
    assert [node.op for node in simplified(networks.residual_block(tmp_path / "m.onnx")).nodes] == ["Conv", "Relu", "Conv", "Add", "Relu"]
    nodes = [("Identity", ["x"], "i", {}), ("Pad", ["i", "p"], "p1", {}), networks.conv("p1", "y", "w", pads=[1, 0, 0, 1], **THREE)]
    graph = simplified(networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 3, 6, 6)}, ["y"], {"p": PADS, "w": W}))
    assert [(node.merged, node.attrs["pads"]) for node in graph.nodes] == [(("y", "p1"), (2, 2, 0, 2))]
    assert set(graph.removed) == {"i"}
    nodes = [("Relu", ["x"], "y", {}), ("Tanh", ["y"], "z", {}), ("Identity", ["x"], "same", {})]
    assert networks.error(networks.save(tmp_path / "m.onnx", nodes, {"x": (1, 5, 3, 3)}, ["y", "z", "same"], {})) <= 1e-6


def test_sigmoid_times_its_input_becomes_silu_and_a_gate_stays_a_product(tmp_path):
    graph = simplified(networks.squeeze_excite(tmp_path / "m.onnx"))
    fuse(graph)
    assert [node.op for node in graph.nodes] == ["Conv", "GlobalAveragePool", "Conv", "Conv", "Binary"]
    assert [node.attrs["activation"].name for node in graph.nodes if node.op == "Conv"] == ["silu", "relu", "hard_sigmoid"]


@pytest.mark.slow
def test_unfused_graph_computes_the_same(tmp_path):
    path = networks.residual_block(tmp_path / "m.onnx")
    assert len(networks.kernels(path, fuse=False)) > len(networks.kernels(path))
    assert networks.error(path, fuse=False) <= 1e-5


def test_parts_of_a_concatenation_are_written_in_place(tmp_path):
    path = networks.classifier(tmp_path / "m.onnx")
    launches = networks.launches(path, winograd="off")
    assert [launch.kernel for launch in launches] == ["stem", "pool", "conv", "conv", "global_pool", "conv", "move", "softmax"]
    assert {a.view.buffer for launch in launches[2:4] for a in launch.arguments if getattr(a, "written", False)} == {"concat_6"}


@pytest.mark.parametrize("outputs", [["z"], ["z", "y"]])
def test_concatenations_of_a_dense_block_copy_only_inputs_and_outputs(tmp_path, outputs):
    weights = {"w1": networks.numbers(16, 16, 1, 1), "w2": networks.numbers(16, 32, 1, 1), "w3": networks.numbers(8, 48, 1, 1)}
    nodes = [
        *(networks.conv("x", "a", "w1", **ONE), ("Relu", ["a"], "b", {}), networks.conv("b", "c", "w1", **ONE)),
        *(("Concat", ["b", "c"], "y", {"axis": 1}), networks.conv("y", "d", "w2", **ONE)),
        *(("Concat", ["b", "c", "d"], "v", {"axis": 1}), networks.conv("v", "z", "w3", **ONE)),
    ]
    path = networks.save(tmp_path / "m.onnx", nodes, {"x": (2, 16, 3, 5)}, outputs, weights)
    assert networks.error(path) <= 1e-5
    if outputs == ["z"]:
        # one move converts the input to blocks; another converts the output back unless its kernel does
        assert [launch.kernel for launch in networks.launches(path, winograd="off")].count("move") <= 2


sizes = st.tuples(*[st.integers(1, 40)] * 3)


@given(sizes, sizes, st.integers(1, 64), sizes)
def test_work_group_is_brought_within_limits(grid, local, limit, most):
    launch = Launch("k", "n", (), (), grid, "", local=local).with_legal_local(limit, most)
    assert all(size <= current and size <= top for size, current, top in zip(launch.local, local, most, strict=True))
    assert prod(launch.local) <= limit or launch.local[:2] == (1, 1)
    assert Launch("k", "n", (), (), grid, "").with_legal_local(limit, most).local is None


def element(view, n, c, h, w):
    """Index of an element in memory, as the kernels compute it."""
    return view.offset + np.dot(view.strides, (n, c // view.lanes, h, w)) + c % view.lanes


@given(st.tuples(*[st.integers(1, 9)] * 4), st.builds(Blocking, st.sampled_from([4, 8, 16]), st.booleans()))
def test_every_element_has_a_unique_index_inside_the_buffer(shape, blocking):
    view = blocking.blocked("t", shape)
    places = {element(view, *index) for index in np.ndindex(*shape)}
    assert len(places) == prod(shape)
    assert max(places) * blocking.item_bytes < view.bytes


AVX2 = Traits("pocl-avx2", 8, True, 16, True, (1, 16, 1))
AVX512 = Traits("pocl-avx512", 16, True, 32, True, (1, 16, 1))
GPU = Traits("nvidia", 4, False, 40, False, (32, 4, 1))

problems = st.builds(KernelProblem, st.just("conv"), st.just(""), st.integers(1, 20000), st.integers(1, 256), st.integers(1, 5000))


@given(problems, st.sampled_from([AVX2, AVX512, GPU]))
def test_every_tile_fits_registers_pixels_and_blocks(problem, traits):
    for tile in rank_tiles(Schedules(traits), problem):
        assert tile["VW"] <= problem.pixels
        assert tile["VC"] <= problem.blocks
        assert tile["VW"] * tile["VC"] + tile["VC"] <= traits.registers


def test_tuned_schedule_is_used_if_it_is_legal():
    problem = KernelProblem("conv", "s", 100, 4, 64)
    legal = rank_tiles(Schedules(AVX2), problem)
    assert Schedules(AVX2, {("conv", "s"): legal[-1]}).parameters(problem, legal) == legal[-1]
    assert Schedules(AVX2, {("conv", "s"): {"VW": 99, "VC": 1, "CHANNELS_FIRST": 0}}).parameters(problem, legal) == legal[0]
    assert Schedules(AVX2, {("conv", "other"): legal[-1]}).parameters(problem, legal) == legal[0]


NETWORKS = [networks.residual_block, networks.squeeze_excite, networks.classifier]


@pytest.mark.parametrize("network", [NETWORKS[0], *(pytest.param(make, marks=pytest.mark.slow) for make in NETWORKS[1:])])
def test_network_agrees_with_onnx_runtime_and_predicts_the_same_class_in_half_precision(tmp_path, network):
    path = network(tmp_path / "m.onnx")
    assert networks.error(path) <= 1e-5
    assert networks.error(path, half=True) <= 1e-2
    (full,), (half,) = networks.run(OpenCLDelegate(), path), networks.run(OpenCLDelegate(half=True), path)
    assert np.array_equal(full.reshape(len(full), -1).argmax(1), half.reshape(len(half), -1).argmax(1))


def test_node_placements_have_kernel_times_and_merged_operators(tmp_path):
    places = {place.name: place for place in OpenCLDelegate().node_placements(networks.residual_block(tmp_path / "m.onnx"))}
    assert places["conv_1"].ms > 0
    assert "kernel" in places["conv_1"].reason
    assert places["batch_norm_2"].reason == places["relu_3"].reason == "merged into `conv_1`"
    assert places["add_5"].reason == places["relu_6"].reason == "merged into `conv_4`"
    # for a refused subgraph, the placement has the reason
    path = networks.save(tmp_path / "m.onnx", [("Cos", ["x"], "y", {})], {"x": (1, 5)}, ["y"], {})
    (place,) = OpenCLDelegate().node_placements(path)
    assert re.search("on the CPU instead.*`y` is a Cos.*no kernel", place.reason)


def test_two_invocations_of_one_subgraph_use_separate_buffers(tmp_path):
    compiled = OpenCLDelegate().compile(networks.classifier(tmp_path / "m.onnx"))
    xs = [networks.numbers(2, 3, 30, 30, seed=seed) for seed in (1, 2)]
    ys = [np.zeros((2, 5), np.float32) for _ in xs]
    calls = [compiled.bind([x], [y]) for x, y in zip(xs, ys, strict=True)]
    for call in calls:
        call.enqueue()
    for call in calls:
        call.wait()
    for x, y in zip(xs, ys, strict=True):
        expected = np.zeros((2, 5), np.float32)
        compiled.run([x], [expected])
        assert np.array_equal(y, expected)
    assert not np.array_equal(*ys)


def test_more_memory_than_the_device_has_is_an_error(tmp_path):
    def huge(tensors, alignment):
        return MemoryPlan({t.name: 0 for t in tensors.tensors}, {t.name: 0 for t in tensors.tensors}, (1 << 60,))

    with pytest.raises(UnableError, match="no memory"):
        OpenCLDelegate(planner=huge).compile(networks.residual_block(tmp_path / "m.onnx"))
    # the next compilation does not reuse the failed allocation
    compiled = OpenCLDelegate().compile(networks.residual_block(tmp_path / "m.onnx"))
    compiled.run([networks.numbers(*SHAPE)], [np.zeros(SHAPE, np.float32)])


@pytest.fixture
def block(tmp_path):
    """A compiled residual block, its input, and an array for its output."""
    path = networks.residual_block(tmp_path / "m.onnx")
    return OpenCLDelegate().compile(path), networks.numbers(*SHAPE), np.zeros(SHAPE, np.float32)


def test_every_run_reads_the_callers_current_arrays(block):
    compiled, x, y = block
    call = compiled.bind([x], [y])
    call.run()
    first = y.copy()
    x *= -2
    call.run()
    assert not np.array_equal(y, first)
    x /= -2
    call.run()
    assert np.array_equal(y, first)


def test_fed_run_computes_the_same_and_every_launch_has_a_time(block):
    compiled, x, y = block
    fed = np.zeros_like(y)
    compiled.run([x], [y])
    assert compiled.bind([x], [fed]).fed_ms() > 0
    assert np.array_equal(y, fed)
    assert all(ms > 0 for _, ms in compiled.profile(fed=True))


@given(st.lists(st.floats(0.001, 10), min_size=1), st.floats(0, 100))
def test_raised_times_have_one_floor_and_sum_to_at_least_the_total(times, total):
    new = invocations.raised(times, total)
    assert sum(new) == pytest.approx(max(total, sum(times)))
    assert all(after >= before for before, after in zip(times, new, strict=True))
    lifted = [after for before, after in zip(times, new, strict=True) if after > before]
    assert all(level == pytest.approx(min(new)) for level in lifted)


def test_device_with_separate_memory_reads_and_writes_non_contiguous_slices(block):
    compiled, _, y = block
    copying = replace(compiled.device, traits=replace(compiled.device.traits, cpu=False))
    x, joined = networks.numbers(1, 16, 12, 9), np.zeros((1, 20, 11, 9), np.float32)
    (read,), (written,) = compiled.inputs, compiled.outputs
    call = invocations.OpenCLInvocation(copying, compiled.commands, {read: x[:, :, 2:11]}, {written: joined[:, 3:19, 1:10]})
    for _ in range(2):
        call.run()
        compiled.run([np.ascontiguousarray(x[:, :, 2:11])], [y])
        assert np.array_equal(joined[:, 3:19, 1:10], y)
        joined[:, 3:19, 1:10] = 0
        assert not joined.any()
        x *= -2


def test_subgraph_is_opened_run_and_freed_again_and_again(tmp_path):
    """Objects may be freed in any order; NVIDIA's driver crashed when sub-buffers were created twice."""
    model = networks.residual_block(tmp_path / "m.onnx")
    x, ys = networks.numbers(*SHAPE), []
    for _ in range(100):
        compiled = OpenCLDelegate().compile(model)
        ys.append(np.zeros(SHAPE, np.float32))
        call = compiled.bind([x], [ys[-1]])
        call.run()
        del call, compiled
    assert all(np.array_equal(y, ys[0]) for y in ys)


def test_pinned_memory_starts_with_zeros_and_gives_the_same_results(block):
    compiled, numbers, expected = block
    device = open_device(())
    raw = pinned_bytes(device, 16 * 81 * 4 * 2)
    assert not raw.any()
    assert not (device.traits.cpu and pinned_is_faster(device))  # a CPU device reads the host's memory directly
    x, y = (part.view(np.float32).reshape(SHAPE) for part in np.split(raw, 2))
    x[:] = numbers
    compiled.run([x], [y])
    compiled.run([numbers], [expected])
    assert np.array_equal(y, expected)


@pytest.fixture
def driven(monkeypatch):
    """Let every delegate use its processor, as for users."""
    monkeypatch.delenv("NN_STRETCH_DRIVERS")
    if len(available_cores()) < 2:
        pytest.skip("two cores are needed")


@pytest.mark.slow
def test_gpu_of_a_bundle_runs_on_opencl_without_being_asked(tmp_path, driven):
    bundle = two_branches(tmp_path / "b")
    with Session(bundle) as session, Session(bundle, {"gpu": "reference"}) as other:
        place = session.placements["gpu"]
        if place.delegate == "vulkan":
            pytest.skip("ncnn drives a GPU here")
        assert (place.delegate, place.dispatch) == ("opencl", "async")
        x = random_input(session.bundle)
        assert np.allclose(session(x), other(x), rtol=1e-5, atol=1e-5)
        assert {span.processor for span in session.trace.spans} == {"cpu", "gpu"}
        for span in session.trace.spans:
            assert session.trace.start_ns <= span.start_ns <= span.end_ns


def refuses(monkeypatch):
    monkeypatch.setattr(invocations, "native_enqueue", lambda: lambda *arguments: cl.status_code.OUT_OF_RESOURCES)


REFUSED = "failed: clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES"


def test_failing_device_fails_the_inference_and_not_the_session(tmp_path, driven, monkeypatch):
    # this delegate has no fallback
    with Session(two_branches(tmp_path / "b"), {"gpu": "opencl"}, delegates={"opencl": OpenCLDelegate()}) as session:
        x = random_input(session.bundle)
        before = session(x)
        with monkeypatch.context() as patched:
            refuses(patched)
            with pytest.raises(StretchError, match=REFUSED) as caught:
                session(x)
            assert "--map gpu=cpu" in caught.value.hint
        assert np.array_equal(session(x), before)


def test_cpu_computes_and_is_named_where_a_device_fails(tmp_path, driven, monkeypatch):
    with Session(two_branches(tmp_path / "b"), {"gpu": "opencl"}) as session:
        x = random_input(session.bundle)
        before = session(x)
        refuses(monkeypatch)
        with pytest.warns(UserWarning, match=f"of the gpu runs on the CPU: .*{REFUSED}"):
            assert np.allclose(session(x), before, rtol=1e-5, atol=1e-5)
        assert {place.delegate for place in session.replaced.values()} == {"cpu"}
        assert all(REFUSED in reason for reason in session.trace.replaced.values())


def test_gpu_that_vanishes_between_two_runs_is_replaced_with_a_reason(tmp_path, driven, monkeypatch):
    """The process that drives the GPU dies, and its successor cannot load the driver's library."""
    delegate = ProcessDelegate("opencl")
    options = {"delegates": {"process": delegate}, "faults": FaultPolicy()}
    with closing(delegate), Session(two_branches(tmp_path / "b"), {"gpu": "process"}, **options) as session:
        x = random_input(session.bundle)
        before = session(x)
        assert not session.replaced
        monkeypatch.setenv(LIBRARY_VARIABLE, str(tmp_path / "libOpenCL.so"))
        os.kill(delegate.pid, signal.SIGKILL)
        assert np.allclose(session(x), before, rtol=1e-5, atol=1e-5)
        assert {place.delegate for place in session.replaced.values()} == {"cpu"}
        (decision,) = session.decisions
        assert (decision.what, decision.site.delegate) == ("retired", "process")
        assert all("library that does not load" in reason for reason in (decision.reason, *session.trace.replaced.values()))
