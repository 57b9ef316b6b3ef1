"""What every delegate has in common, and arrays that other processes map."""

import gc
import os
import time

import numpy as np
import onnx
import pytest
from onnx import helper

from predictors.errors import StretchError
from scheduler.bundle.load import load_bundle
from scheduler.delegates import CpuDelegate, Delegate, delegates, get_delegate, load_plugins
from scheduler.delegates.cpu import place_kernels
from scheduler.delegates.null import NullDelegate
from scheduler.shared import describe, opened, shared_bytes, shared_like
from tests import onnx_runtime
from tests.scheduler.bundles import onnx_model


def installed(tmp_path, monkeypatch, name, target, code=""):
    """An installed package with one entry point in our group."""
    info = tmp_path / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[nn_stretch.delegates]\n{name} = {target}\n")
    (tmp_path / f"{name}_module.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


THEIRS = """
from scheduler.delegates.null import NullDelegate

class Theirs(NullDelegate):
    summary = "from another package"
"""


@pytest.fixture
def clean_registry(monkeypatch):
    """The registry as it was, whatever the test loads."""
    monkeypatch.setattr(delegates, "_items", dict(delegates._items))


def test_delegate_of_another_package_is_found_by_its_entry_point(tmp_path, monkeypatch, clean_registry):
    installed(tmp_path, monkeypatch, "theirs_ok", "theirs_ok_module:Theirs", THEIRS)
    assert get_delegate("theirs_ok").summary == "from another package"
    assert load_plugins() == {}
    assert "theirs_ok" in delegates


@pytest.mark.representatives(9)
@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([], [np.zeros((1, 6, 8, 8), np.float32)], "1 inputs, 0 buffers"),
        ([np.zeros((1, 3, 8, 8), np.float32)], [np.zeros((1, 6, 8, 9), np.float32)], "output `t0` has shape"),
        ([np.zeros((1, 3, 8, 16), np.float32)[..., ::2]], [np.zeros((1, 6, 8, 8), np.float32)], "not contiguous"),
    ],
)
@pytest.mark.parametrize(
    "name", [name for name in delegates if "fp32" in delegates.get(name).precisions and delegates.get(name).form == "onnx"]
)
def test_every_delegate_refuses_buffers_that_do_not_fit(bundle_dir, name, inputs, outputs, message):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    delegate: Delegate = delegates.get(name)()
    with pytest.raises(StretchError, match=message):
        delegate.compile(bundle_dir / "stem.onnx").bind(inputs, outputs)


@pytest.mark.representatives(8)
@pytest.mark.parametrize("name", sorted(delegates))
@pytest.mark.parametrize("content", [None, b"", b"not onnx at all"])
def test_every_delegate_refuses_a_file_that_is_no_model(tmp_path, name, content):
    file = tmp_path / "m.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StretchError):
        delegates.get(name)().compile(file)


@pytest.mark.parametrize("name", [name for name in delegates if not delegates.get(name).tunes])
def test_delegate_without_kernels_of_its_own_says_that_it_has_nothing_to_tune(bundle_dir, name):
    with pytest.raises(StretchError, match=r"has nothing to tune in subgraph `s1\.gpu`"):
        delegates.get(name)().tuning_from(load_bundle(bundle_dir), "s1.gpu", "fast")


X = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)


def test_writes_straight_into_a_slice_of_a_larger_buffer_and_nowhere_else(bundle_dir):
    joined = np.full((1, 20, 8, 8), 5, np.float32)
    CpuDelegate().compile(bundle_dir / "stem.onnx").run([X], [joined[:, 7:13]])
    expected = onnx_runtime.output(bundle_dir / "stem.onnx", X)
    assert np.array_equal(joined[:, 7:13], expected)
    assert (joined[:, :7] == 5).all()
    assert (joined[:, 13:] == 5).all()


def test_model_without_fixed_shapes_is_refused(tmp_path):
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"])], {"x": ("batch", 4)}, {"y": ("batch", 4)})
    onnx.save(model, str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=r"`x` of .* has no fixed shape"):
        CpuDelegate().compile(tmp_path / "m.onnx")


NODES = [
    helper.make_node("Conv", ["x", "w1"], ["c1"], name="conv1"),
    helper.make_node("BatchNormalization", ["c1"], ["b1"], name="bn1"),
    helper.make_node("Relu", ["b1"], ["r1"], name="relu1"),
    helper.make_node("Conv", ["r1", "w2"], ["c2"], name="conv2"),
    helper.make_node("Add", ["c2", "x"], ["a2"], name="add2"),
    helper.make_node("Relu", ["a2"], ["r2"], name="relu2"),
    helper.make_node("Flatten", ["r2"], ["y"]),
]


def placed(kernels):
    return {p.name: (p.ms, p.reason) for p in place_kernels(NODES, kernels)}


def test_kernel_in_blocked_layout_belongs_to_the_convolution_it_started_from():
    places = placed({"r1_nchwc": ("Conv", 2.0), "r2_nchwc": ("Conv", 3.0), "Flatten_6": ("Flatten", 0.5)})
    assert {name: ms for name, (ms, _) in places.items() if ms is not None} == {"conv1": 2.0, "conv2": 3.0, "Flatten_6": 0.5}
    assert "`conv1`" in places["bn1"][1]
    assert "`conv1`" in places["relu1"][1]
    assert "`conv2`" in places["add2"][1]
    assert "`conv2`" in places["relu2"][1]


def test_fused_kernel_is_found_by_the_name_it_was_given():
    places = placed({"fused conv1": ("FusedConv", 2.0), "conv2": ("Conv", 1.0), "add2": ("Add", 0.1), "relu2": ("Relu", 0.2)})
    assert places["conv1"][0] == 2.0
    assert places["add2"][0] == 0.1
    assert "`conv1`" in places["relu1"][1]


def test_kernel_of_no_operator_is_listed_as_added():
    places = placed({"ReorderOutput_token_3": ("ReorderOutput", 0.4)})
    assert places["ReorderOutput_token_3"] == (0.4, "added by ONNX Runtime to change the layout")


def test_operator_without_any_kernel_before_it_was_optimised_away():
    assert "optimised away" in placed({})["conv1"][1]


@pytest.mark.parametrize(("seconds", "cost"), [(0.03, 0.03), ({"stem": 0.03}, 0.03), ({"other": 9.0}, 0.0)])
def test_costs_at_least_what_it_is_told_and_writes_nothing(bundle_dir, seconds, cost):
    output = np.full((1, 6, 8, 8), 7, np.float32)
    call = NullDelegate(seconds).compile(bundle_dir / "stem.onnx").bind([X], [output])
    start = time.perf_counter()
    call.run()
    assert time.perf_counter() - start >= cost
    assert (output == 7).all()


def test_class_of_every_delegate_of_the_folder_is_a_name_of_the_package():
    import scheduler.delegates as package

    ours = [delegates.get(name) for name in delegates if delegates.get(name).__module__.startswith("scheduler.delegates.")]
    assert len(ours) >= 9
    for our in ours:
        assert getattr(package, our.__name__) is our


def test_name_that_is_no_delegate_is_no_name_of_the_package():
    with pytest.raises(ImportError, match="NoSuchDelegate"):
        from scheduler.delegates import NoSuchDelegate  # noqa: F401


ARRAYS = [np.zeros((2, 3), np.float32), np.zeros(5, np.int64), np.zeros((1, 1), np.uint8)]


def test_what_one_writes_the_other_reads():
    for number, current in enumerate(shared_like(ARRAYS)):
        assert current.flags.c_contiguous
        assert current.flags.writeable
        other = opened(describe(current))
        current[:] = number + 1
        assert (other == number + 1).all()
        other[:] = 7
        assert (current == 7).all()
    assert [(item.shape, item.dtype) for item in shared_like(ARRAYS)] == [(array.shape, array.dtype) for array in ARRAYS]


def test_any_contiguous_view_is_described_and_nothing_else():
    memory = shared_bytes(4096)
    part = memory[128:256].view(np.float32).reshape(2, 16)
    part[1] = 3
    assert opened(describe(part[1])).tolist() == [3] * 16
    assert describe(np.zeros(8, np.float32)) is None


@pytest.mark.slow
def test_nothing_of_it_is_left_when_it_goes():
    def use():
        shared_like(ARRAYS)[0][:] = 1

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        use()
    assert len(os.listdir("/proc/self/fd")) == before
