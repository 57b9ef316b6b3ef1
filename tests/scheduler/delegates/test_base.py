"""Common behaviour of all delegates, subgraphs in other processes, and arrays in shared memory."""

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import helper

from predictors.errors import StretchError, UnknownNameError
from scheduler.bundle.load import load_bundle
from scheduler.delegates import CpuDelegate, Delegate, delegates
from scheduler.delegates.cpu import place_kernels
from scheduler.delegates.null import NullDelegate
from scheduler.delegates.process import ChildEndedError, ChildProcess, ProcessDelegate, Server, serve
from scheduler.runtime.session import Session
from scheduler.shared import describe, open_array, shared_bytes, shared_like
from tests import onnx_runtime
from tests.scheduler.bundles import onnx_model
from tests.scheduler.doubles import numbers, whole

X = numbers()


@pytest.mark.representatives(9)
@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ([], [numbers(0, (1, 6, 8, 8))], "1 inputs, 0 buffers"),
        ([X], [numbers(0, (1, 6, 8, 9))], "output `t0` has shape"),
        ([numbers(0, (1, 3, 8, 16))[..., ::2]], [numbers(0, (1, 6, 8, 8))], "not contiguous"),
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
def test_delegate_without_tunable_kernels_refuses_tuning(bundle_dir, name):
    with pytest.raises(StretchError, match=r"has nothing to tune in subgraph `s1\.gpu`"):
        delegates.get(name)().tuning_from(load_bundle(bundle_dir), "s1.gpu", "fast")


def test_writes_straight_into_a_slice_of_a_larger_buffer_and_nowhere_else(bundle_dir):
    joined = np.full((1, 20, 8, 8), 5, np.float32)
    CpuDelegate().compile(bundle_dir / "stem.onnx").run([X], [joined[:, 7:13]])
    assert np.array_equal(joined[:, 7:13], onnx_runtime.output(bundle_dir / "stem.onnx", X))
    assert (np.delete(joined, range(7, 13), axis=1) == 5).all()


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


def test_kernel_is_assigned_to_its_first_operator_or_its_name_or_marked_as_added_by_the_runtime():
    places = placed({"r1_nchwc": ("Conv", 2.0), "r2_nchwc": ("Conv", 3.0), "Flatten_6": ("Flatten", 0.5)})
    assert {name: ms for name, (ms, _) in places.items() if ms is not None} == {"conv1": 2.0, "conv2": 3.0, "Flatten_6": 0.5}
    for conv, merged in (("conv1", ("bn1", "relu1")), ("conv2", ("add2", "relu2"))):
        assert all(f"`{conv}`" in places[name][1] for name in merged)
    places = placed({"fused conv1": ("FusedConv", 2.0), "conv2": ("Conv", 1.0), "add2": ("Add", 0.1), "relu2": ("Relu", 0.2)})
    assert (places["conv1"][0], places["add2"][0], "`conv1`" in places["relu1"][1]) == (2.0, 0.1, True)
    added = placed({"ReorderOutput_token_3": ("ReorderOutput", 0.4)})
    assert added["ReorderOutput_token_3"] == (0.4, "added by ONNX Runtime to change the layout")
    assert "optimised away" in placed({})["conv1"][1]


@pytest.mark.parametrize(("seconds", "cost"), [(0.03, 0.03), ({"stem": 0.03}, 0.03), ({"other": 9.0}, 0.0)])
def test_null_delegate_takes_at_least_the_given_time_and_writes_nothing(bundle_dir, seconds, cost):
    output = np.full((1, 6, 8, 8), 7, np.float32)
    call = NullDelegate(seconds).compile(bundle_dir / "stem.onnx").bind([X], [output])
    start = time.perf_counter()
    call.run()
    assert time.perf_counter() - start >= cost
    assert (output == 7).all()


def test_package_exports_exactly_the_delegate_classes_of_its_folder():
    import scheduler.delegates as package

    classes = [delegates.get(name) for name in delegates if delegates.get(name).__module__.startswith("scheduler.delegates.")]
    assert len(classes) >= 9
    assert all(getattr(package, delegate.__name__) is delegate for delegate in classes)
    with pytest.raises(ImportError, match="NoSuchDelegate"):
        from scheduler.delegates import NoSuchDelegate  # noqa: F401


ARRAYS = [np.zeros((2, 3), np.float32), np.zeros(5, np.int64), np.zeros((1, 1), np.uint8)]


def test_shared_arrays_see_each_others_writes_and_only_contiguous_shared_views_are_described():
    arrays = shared_like(ARRAYS)
    assert [(item.shape, item.dtype) for item in arrays] == [(array.shape, array.dtype) for array in ARRAYS]
    for number, current in enumerate(arrays):
        assert current.flags.c_contiguous
        assert current.flags.writeable
        opened = open_array(describe(current))
        current[:] = number + 1
        assert (opened == number + 1).all()
        opened[:] = 7
        assert (current == 7).all()
    part = shared_bytes(4096)[128:256].view(np.float32).reshape(2, 16)
    part[1] = 3
    assert open_array(describe(part[1])).tolist() == [3] * 16
    assert describe(np.zeros(8, np.float32)) is None


@pytest.mark.slow
def test_shared_memory_is_freed_with_its_arrays():
    def use():
        shared_like(ARRAYS)[0][:] = 1

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        use()
    assert len(os.listdir("/proc/self/fd")) == before


def children():
    """Ids of all delegate processes, including processes that other tests still use."""
    listing = subprocess.run(["ps", "-ww", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True)
    return {int(line.split()[0]) for line in listing.stdout.splitlines() if "process import child" in line}


@pytest.fixture
def before():
    """Delegate processes that existed before the test, after garbage collection ended unused ones."""
    gc.collect()
    return children()


def child_since(before):
    (pid,) = children() - before
    return pid


@pytest.mark.slow
def test_branch_in_a_child_process_gives_the_same_numbers_and_a_killed_child_is_replaced(bundle_dir, before):
    with Session(bundle_dir, {"gpu": "process"}) as session:
        assert session.placements["gpu"].dispatch == "async"
        for number in range(4):
            x = X * (number + 1)
            for y in (session(x), session.submit(x).result(60)):
                assert np.allclose(y, whole(bundle_dir, x), atol=1e-5)
            child = child_since(before)
            if number < 3:
                os.kill(child, signal.SIGKILL)
    del session
    gc.collect()
    assert child not in children()


def test_child_that_cannot_be_restarted_is_one_clear_error(bundle_dir, before, tmp_path):
    file = tmp_path / "stem.onnx"
    file.write_bytes((bundle_dir / "stem.onnx").read_bytes())
    delegate = ProcessDelegate("cpu")
    call = delegate.compile(file).bind([X], [np.zeros((1, 6, 8, 8), np.float32)])
    file.unlink()
    os.kill(child_since(before), signal.SIGKILL)
    with pytest.raises(StretchError, match=r"stem.onnx"):
        call.run()
    delegate.close()
    with pytest.raises(StretchError, match="closed"):
        call.run()


def test_unknown_inner_delegate_unknown_command_and_closed_child_are_refused():
    with pytest.raises(UnknownNameError) as error:
        ProcessDelegate("refrence")
    assert "reference" in error.value.hint
    with pytest.raises(StretchError, match="does not know"):
        Server("reference", ()).handle({"do": "dance"})
    child = ChildProcess("reference", ())
    child.end()
    with pytest.raises(ChildEndedError, match="closed"):
        child.create(do="compile", model="x.onnx")


@pytest.mark.slow
def test_interpreter_that_ends_without_closing_leaves_no_child(bundle_dir):
    code = f"from scheduler.runtime.session import Session; import numpy as np; s = Session({str(bundle_dir)!r}, {{'gpu': 'process'}}); s(np.zeros((1, 3, 8, 8), np.float32))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.representatives(1)
@pytest.mark.parametrize("method", ["run", "submit"])
def test_hanging_child_is_ended_after_the_time_limit_and_the_session_goes_on(bundle_dir, before, method):
    with Session(bundle_dir, {"gpu": "process"}, time_limit=3) as session:
        run = session if method == "run" else lambda x: session.submit(x).result(60)
        run(X)
        os.kill(child_since(before), signal.SIGSTOP)
        with pytest.raises(StretchError, match=r"`s1.gpu` failed on processor `gpu` \(delegate `process`\): it did not end within 3 s"):
            run(X)
        assert np.allclose(run(X), whole(bundle_dir, X), atol=1e-6)
    assert children() <= before


def test_failed_command_is_answered_and_the_next_command_is_served(bundle_dir):
    files = ("nowhere.onnx", str(bundle_dir / "stem.onnx"))
    commands = [{"do": "compile", "model": file, "key": key, "number": key + 1} for key, file in enumerate(files)]
    answers = io.BytesIO()
    serve(Server("reference", ()), io.BytesIO(b"".join(json.dumps(c).encode() + b"\n" for c in commands)), answers)
    first, second = (json.loads(line) for line in answers.getvalue().splitlines())
    assert (first["number"], "nowhere.onnx" in first["error"]) == (1, True)
    assert second == {"number": 2, "inputs": [["x", [1, 3, 8, 8]]], "outputs": [["t0", [1, 6, 8, 8]]]}
