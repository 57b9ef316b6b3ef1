"""Memory of tensors between subgraphs, and arrays of callers."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.manifest import Tensor
from scheduler.delegates.base import AsyncInvocation, Invocation, pieces_of
from scheduler.memory import planners
from scheduler.runtime.buffers import MAX_SHARED, Buffers, wrap_invocation
from scheduler.runtime.inputs import as_array, check_input
from scheduler.runtime.plan import PlannedSubgraph, build_plan, make_plan
from scheduler.runtime.sequential import TOLERANCES, distance
from tests.scheduler.runtime.plans import plans


@pytest.fixture
def buffers_of(bundles, tmp_path):
    """Function that makes the buffers of a two-branch bundle, from a layout and options of the builder."""

    def make(layout="NCHW", **options):
        manifest = load_bundle(bundles.two_branches(tmp_path / "b", **options)).manifest
        if layout == "NHWC":
            tensors = tuple(
                msgspec.structs.replace(t, layout="NHWC", shape=(t.shape[0], *t.shape[2:], t.shape[1])) if len(t.shape) == 4 else t
                for t in manifest.tensors
            )
            manifest = msgspec.structs.replace(manifest, tensors=tensors)
        return Buffers(make_plan(manifest), manifest.tensors)

    return make


def fill(buffers, names):
    rng = np.random.default_rng(0)
    values = [rng.normal(size=buffers.arrays[name].shape).astype(np.float32) for name in names]
    for name, value in zip(names, values, strict=True):
        buffers.arrays[name][...] = value
    return values


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_concat_branches_are_slices_of_its_output_and_a_sum_adds_branches_without_changing_them(buffers_of, processors):
    buffers = buffers_of(processors=processors)
    names = [f"s1.{p}.y" for p in processors]
    values = fill(buffers, names)
    assert buffers.joins["s1.join"] is None
    assert np.array_equal(buffers.arrays["t1"], np.concatenate(values, axis=1))
    assert all(buffers.arrays[name].flags.c_contiguous for name in names)
    names = [f"s2.{p}.y" for p in processors]
    values = fill(buffers, names)
    for _ in range(2):
        buffers.joins["s2.join"]()
    assert np.allclose(buffers.arrays["t2"], sum(values), rtol=1e-6)
    assert all(np.array_equal(buffers.arrays[n], v) for n, v in zip(names, values, strict=True))


@pytest.mark.parametrize(("options", "axis"), [({"batch": 2}, 1), ({"layout": "NHWC"}, 3)])
@pytest.mark.parametrize("takes_slices", [False, True])
def test_branches_write_non_contiguous_slices_directly_or_by_a_copy(buffers_of, options, axis, takes_slices):
    buffers = buffers_of(**options)
    assert buffers.joins["s1.join"] is None
    names = ["s1.cpu.y", "s1.gpu.y"]
    calls = [buffers.writes(PlannedSubgraph(name[:-2], "s1", "", "cpu", (), (name,)), takes_slices) for name in names]
    values = [
        np.random.default_rng(i).normal(size=bound[name].shape) for i, (name, (bound, _)) in enumerate(zip(names, calls, strict=True))
    ]
    for name, value, (bound, copies) in zip(names, values, calls, strict=True):
        assert bound[name].flags.c_contiguous != takes_slices
        bound[name][...] = value
        for target, source in copies:
            target[...] = source
    assert np.array_equal(buffers.arrays["t1"], np.concatenate(values, axis=axis).astype(np.float32))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.booleans()), min_size=1, max_size=4))
def test_pieces_of_a_slice_have_its_elements_in_order(axes):
    """Oracle: the addresses of all elements."""
    shape = [start + size + 1 for start, size, _ in axes]
    cut = tuple(slice(start, start + size) if is_cut else slice(None) for start, size, is_cut in axes)
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)[cut]
    pieces = pieces_of(array)
    if pieces is not None:
        count, length, distance = (number if i == 0 else number // 4 for i, number in enumerate(pieces))
        first = int(array.reshape(-1)[0])
        assert [first + i * distance + j for i in range(count) for j in range(length)] == array.reshape(-1).tolist()
    assert pieces is not None or sum(is_cut for *_, is_cut in axes) > 1


@st.composite
def networks(draw):
    """A random plan and tensors of random sizes; some subgraphs read rows only, and joins are sums or concatenations."""
    plan, _ = draw(plans())
    batch = draw(st.integers(1, 2))
    sizes = {
        name: (batch, draw(st.integers(1, 40)), 2, 2)
        for name in {t for step in plan.order for t in plan.step(step).outputs} | {*plan.inputs}
    }
    joins = {}
    for name in plan.order:
        if (join := plan.joins.get(name)) is not None:
            kind = "sum" if len({sizes[i] for i in join.inputs}) == 1 and draw(st.booleans()) else "concat"
            joins[name] = msgspec.structs.replace(join, kind=kind)
            sizes[join.output] = sizes[join.inputs[0]] if kind == "sum" else (batch, sum(sizes[i][1] for i in join.inputs), 2, 2)
    bands = {
        name: replace(step, rows={i: (row, row + 1) for i in step.inputs if draw(st.booleans()) for row in [draw(st.integers(0, 1))]})
        for name, step in plan.subgraphs.items()
    }
    plan = build_plan(plan.inputs, plan.outputs, bands.values(), joins.values())
    return plan, [Tensor(name, shape, "", ()) for name, shape in sizes.items()]


def run_plan(plan, buffers, order):
    """Outputs after all steps in `order`, where each subgraph's outputs depend on the sum of its inputs."""
    for i, name in enumerate(plan.inputs):
        buffers.arrays[name][...] = i + 1
    for name in order:
        if name in plan.joins:
            if buffers.joins[name] is not None:
                buffers.joins[name]()
            continue
        step = plan.subgraphs[name]
        bound, copies = buffers.reads(step)
        for current, rows in copies:
            current[...] = rows
        total = sum(float((bound[i] * (k + 1)).sum()) for k, i in enumerate(step.inputs)) % 1009
        bound, copies = buffers.writes(step)
        for k, output in enumerate(step.outputs):
            array = bound[output]
            array[...] = (total + np.arange(array.size).reshape(array.shape) * (k + 3)) % 101
        for target, result in copies:
            target[...] = result
    return {name: buffers.arrays[name].copy() for name in plan.outputs}


@settings(deadline=None)
@given(networks(), st.sampled_from(sorted(planners)), st.data())
def test_shared_memory_gives_the_results_of_separate_memory_in_any_order_of_steps(network, planner, data):
    plan, tensors = network
    expected = run_plan(plan, Buffers(plan, tensors, planners.get("naive")), plan.order)
    ready, available, remaining = [], set(plan.inputs), list(plan.order)
    while remaining:
        name = data.draw(st.sampled_from([n for n in remaining if available.issuperset(plan.step(n).inputs)]))
        remaining.remove(name)
        ready.append(name)
        available.update(plan.step(name).outputs)
    result = run_plan(plan, Buffers(plan, tensors, planners.get(planner)), ready)
    assert all(np.array_equal(result[name], value) for name, value in expected.items())


def test_memory_counts_slices_once_shrinks_by_sharing_is_aligned_and_refuses_a_too_large_tensor(bundles, tmp_path):
    manifest = load_bundle(bundles.two_branches(tmp_path / "b")).manifest
    plan = make_plan(manifest)
    separate, shared = (Buffers(plan, manifest.tensors, planners.get(name)) for name in ("naive", "offset"))
    assert separate.bytes == sum(a.nbytes for name, a in separate.arrays.items() if name not in ("s1.cpu.y", "s1.gpu.y"))
    assert shared.bytes < separate.bytes
    assert {shared.arrays[name].ctypes.data % 64 for name in shared.memory.offsets} == {0}
    huge = tuple(msgspec.structs.replace(t, shape=(1, 1 << 60)) if t.name == "t0" else t for t in manifest.tensors)
    for planner in planners:
        with pytest.raises(StretchError, match="`t0`"):
            Buffers(plan, huge, planners.get(planner))


@pytest.mark.parametrize(
    ("layout", "shape", "rows"),
    [("NHWC", (1, 8, 4, 3), (1, 3, 4, 3)), ("NCHW", (1, 3, 8, 4), (1, 3, 3, 4)), ("NHWC", (2, 8, 4, 3), (2, 3, 4, 3))],
    ids=["one piece", "several pieces", "several images"],
)
def test_contiguous_rows_are_a_view_and_other_rows_are_copied(layout, shape, rows):
    plan = build_plan(["x"], ["y"], [PlannedSubgraph("s", "s", "", "cpu", ("x",), ("y",), {"x": (2, 5)})], [])
    buffers = Buffers(plan, [Tensor("x", shape, "", (), layout=layout), Tensor("y", (1, 5), "", (), layout="NC")])
    bound, copies = buffers.reads(plan.subgraphs["s"])
    assert (bound["x"].shape, bound["x"].flags.c_contiguous) == (rows, True)
    view = shape == (1, 8, 4, 3)
    assert np.shares_memory(bound["x"], buffers.arrays["x"]) == view == (copies == []) == (sorted(buffers.arrays) == ["x", "y"])
    for target, source in copies:
        assert target is bound["x"]
        assert np.shares_memory(source, buffers.arrays["x"])
        assert source.shape == target.shape


def test_memory_of_rows_is_reused_after_their_reader_but_not_for_very_many_tensors():
    """In a chain, the inputs of steps i and i + 2 are never alive at one time."""
    subgraphs = [PlannedSubgraph(f"s{i}", "s", "", "cpu", (f"t{i}",), (f"t{i + 1}",), {f"t{i}": (0, 6)}) for i in range(6)]
    tensors = [Tensor(f"t{i}", (1, 4, 8, 8), "", ()) for i in range(7)]
    plan = build_plan(["t0"], ["t6"], subgraphs, [])
    separate, shared = Buffers(plan, tensors, planners.get("naive")), Buffers(plan, tensors)
    assert shared.bytes <= 3 * 1024 < separate.bytes == 7 * 1024 + 6 * 768
    count = MAX_SHARED + 1
    subgraphs = [PlannedSubgraph(f"s{i}", "s", "", "cpu", (f"t{i}",), (f"t{i + 1}",)) for i in range(count)]
    tensors = [Tensor(f"t{i}", (1, 16), "", (), layout="NC") for i in range(count + 1)]
    assert Buffers(build_plan(["t0"], [f"t{count}"], subgraphs, []), tensors).bytes == (count + 1) * 64


def test_tensor_with_the_name_of_a_copy_of_rows_keeps_its_memory():
    name = "rows of x for s"
    plan = build_plan(["x", name], ["y"], [PlannedSubgraph("s", "s", "", "cpu", ("x", name), ("y",), {"x": (0, 1)})], [])
    tensors = [Tensor(n, (1, 2, 2, 2), "", ()) for n in ("x", name, "y")]
    bound, _ = Buffers(plan, tensors).reads(plan.subgraphs["s"])
    assert [bound[n].shape for n in ("x", name)] == [(1, 2, 1, 2), (1, 2, 2, 2)]


class Doubled(Invocation):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def run(self):
        self.y[...] = 2 * self.x

    def conversions(self):
        return (("to NHWC", 1, 2),)


class DoubledLater(AsyncInvocation):
    def __init__(self, x, y):
        self.x, self.y, self.read = x, y, None

    def enqueue(self):
        self.read = self.x.copy()

    def wait(self):
        self.y[...] = 2 * self.read

    def times(self):
        return 5, 9


def image():
    x = np.arange(24.0).reshape(1, 3, 4, 2)
    return x, np.zeros((1, 3, 2, 2)), np.zeros((1, 3, 2, 2))


@pytest.mark.parametrize("kind", [Doubled, DoubledLater])
def test_rows_are_copied_before_and_outputs_after_every_run_and_both_are_reported_as_conversions(kind):
    x, current, y = image()
    joined, later = np.zeros((1, 3, 4, 2)), kind is DoubledLater
    plain = kind(current, y)
    assert wrap_invocation(plain, []) is plain
    call = wrap_invocation(plain, [(current, x[:, :, 1:3])], [(joined[:, :, 2:], y)])
    assert isinstance(call, AsyncInvocation) == later
    for _ in range(2):
        before = x[:, :, 1:3].copy()
        call.enqueue() if later else call.run()
        # an enqueued run reads the rows at the time of `enqueue`
        x += 1
        if later:
            call.wait()
        assert np.array_equal(joined[:, :, 2:], 2 * before)
        assert not joined[:, :, :2].any()
    (rows, start, end), *inner, (join, begun, ended) = call.conversions()
    assert (rows, inner, join) == ("rows", [] if later else [("to NHWC", 1, 2)], "join")
    assert 0 < start <= end <= begun <= ended
    assert not later or call.times() == (start, ended)


@pytest.mark.torch
def test_torch_tensor_shares_its_memory_and_an_unreadable_input_is_refused_with_a_hint():
    import torch

    tensor = torch.zeros(1, 3, 4, 5)
    array = as_array(tensor)
    tensor += 1
    assert isinstance(array, np.ndarray)
    assert (array == 1).all()
    last, first = np.zeros((1, 4, 5, 3), np.float32), np.zeros((1, 3, 4, 5), np.float32)
    for read, arguments, hint in ((as_array, (torch.zeros(1, requires_grad=True),), "detach"), (check_input, (last, first), "NHWC")):
        with pytest.raises(UsageError) as refused:
            read(*arguments)
        assert hint in refused.value.hint


def test_fp32_is_compared_by_maximum_lower_precisions_by_root_mean_square_and_nan_never_passes():
    want = np.full(100, 2, np.float32)
    got, broken = want.copy(), want.copy()
    got[7] += 1
    broken[7] = np.nan
    assert [distance(got, want, precision) for precision in ("fp32", "int8")] == pytest.approx([0.5, 1 / np.linalg.norm(want)])
    assert not any(distance(broken, want, precision) <= tolerance for precision, tolerance in TOLERANCES.items())
