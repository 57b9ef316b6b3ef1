import msgspec
import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.placement.mapping import place_processors
from scheduler.runtime.buffers import Buffers
from scheduler.runtime.plan import make_plan


@pytest.fixture
def buffers_of(bundles, tmp_path):
    """Buffers of a two-branch bundle; keywords of the builder, then a change of the manifest's tensors."""

    def make(layout="NCHW", **options):
        manifest = load_bundle(bundles.two_branches(tmp_path / "b", **options)).manifest
        if layout == "NHWC":
            tensors = tuple(
                msgspec.structs.replace(t, layout="NHWC", shape=(t.shape[0], *t.shape[2:], t.shape[1])) if len(t.shape) == 4 else t
                for t in manifest.tensors
            )
            manifest = msgspec.structs.replace(manifest, tensors=tensors)
        used = list(dict.fromkeys(s.processor for s in manifest.subgraphs))
        return Buffers(make_plan(manifest, place_processors(used, cores=(0, 1, 2))), manifest.tensors)

    return make


def fill(buffers, names):
    rng = np.random.default_rng(0)
    values = [rng.normal(size=buffers.arrays[name].shape).astype(np.float32) for name in names]
    for name, value in zip(names, values, strict=True):
        buffers.arrays[name][...] = value
    return values


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_branches_of_a_concat_lie_in_its_output_side_by_side_and_nothing_is_left_to_copy(buffers_of, processors):
    buffers = buffers_of(processors=processors)
    names = [f"s1.{p}.y" for p in processors]
    values = fill(buffers, names)
    assert buffers.joins["s1.join"] is None
    assert np.array_equal(buffers.arrays["t1"], np.concatenate(values, axis=1))
    assert all(buffers.arrays[name].flags.c_contiguous for name in names)


@pytest.mark.parametrize(("options", "axis"), [({"batch": 2}, 1), ({"layout": "NHWC"}, 3)])
def test_slices_that_are_not_contiguous_are_copied_at_the_join(buffers_of, options, axis):
    buffers = buffers_of(**options)
    values = fill(buffers, ["s1.cpu.y", "s1.gpu.y"])
    assert all(buffers.arrays[name].flags.c_contiguous for name in ("s1.cpu.y", "s1.gpu.y"))
    buffers.joins["s1.join"]()
    assert np.array_equal(buffers.arrays["t1"], np.concatenate(values, axis=axis))


@pytest.mark.parametrize("processors", [("cpu", "gpu"), ("cpu", "gpu", "dsp")])
def test_sum_adds_all_branches_and_leaves_them_as_they_are(buffers_of, processors):
    buffers = buffers_of(processors=processors)
    names = [f"s2.{p}.y" for p in processors]
    values = fill(buffers, names)
    for _ in range(2):
        buffers.joins["s2.join"]()
    assert np.allclose(buffers.arrays["t2"], sum(values), rtol=1e-6)
    assert all(np.array_equal(buffers.arrays[n], v) for n, v in zip(names, values, strict=True))


def test_no_two_tensors_share_memory_unless_one_is_joined_into_the_other(buffers_of):
    arrays = buffers_of().arrays
    inside = {("s1.cpu.y", "t1"), ("s1.gpu.y", "t1")}
    for a in arrays:
        for b in arrays:
            if a < b:
                assert np.shares_memory(arrays[a], arrays[b]) == ((a, b) in inside), (a, b)


def test_tensor_too_large_for_memory_is_one_error(bundles, tmp_path):
    manifest = load_bundle(bundles.two_branches(tmp_path / "b")).manifest
    huge = tuple(msgspec.structs.replace(t, shape=(1, 1 << 60)) if t.name == "t0" else t for t in manifest.tensors)
    plan = make_plan(manifest, place_processors(["cpu", "gpu"], cores=(0, 1)))
    with pytest.raises(StretchError, match="no memory for the tensor `t0`"):
        Buffers(plan, huge)


def test_memory_counts_slices_once(buffers_of):
    buffers = buffers_of()
    owners = {name: a for name, a in buffers.arrays.items() if name not in ("s1.cpu.y", "s1.gpu.y")}
    assert buffers.bytes == sum(a.nbytes for a in owners.values())
