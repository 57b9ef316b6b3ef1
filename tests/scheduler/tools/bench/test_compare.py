"""Benchmarks of files: which runtimes take them, rounds, the machine meanwhile, outputs compared, records checked."""

import hashlib
import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.cores import available_cores
from scheduler.formats.tflite import open_tflite
from scheduler.measure.steady import MOST_STARTS, known
from scheduler.tools.bench import BenchRequest, MeasurementLength
from scheduler.tools.bench.compare import (
    LEAST_STARTS,
    WINDOW,
    BenchContender,
    Conditions,
    check_bench,
    compare,
    holds,
    largest_error,
    play,
    read_bench,
    summarise,
    verdict,
)
from scheduler.tools.bench.subject import (
    UNNAMED,
    FileEnd,
    Ready,
    digest,
    hash_of,
    open_subject,
    prepare,
    random_arrays,
    settled,
    tflite_macs,
    unavailable,
)
from tests.scheduler.bundles import onnx_model
from tests.scheduler.tools.bench.nets import CHANNELS, FILTERS, WIDE, conv_onnx, linear_tflite


def test_open_shapes_are_fixed_in_a_copy(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", shape=("n", CHANNELS, "h", "w"), out=("n", FILTERS, "h", "w"))
    folder = tmp_path / "made"
    folder.mkdir()
    with pytest.raises(UsageError, match="open"):
        open_subject(str(path), {}, 0, folder)
    result = open_subject(str(path), {UNNAMED: (2, CHANNELS, 6, 5)}, 0, folder)
    assert result.model.parent == folder
    assert result.outputs["y"][1] == (2, FILTERS, 6, 5)
    assert result.macs == FILTERS * CHANNELS * 9 * 30 * 2
    onnx.checker.check_model(onnx.load(result.model))


def test_output_of_a_size_that_only_running_tells_is_known(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", out=(1, FILTERS, "h", "w"))
    assert open_subject(str(path), {}, 0, tmp_path).outputs["y"][1] == (1, FILTERS, WIDE, WIDE)


@pytest.mark.parametrize(
    ("code", "reads", "written", "macs"),
    [
        ("CONV_2D", [(1, 9, 9, 3), (8, 3, 3, 3), (8,)], (1, 9, 9, 8), 81 * 8 * 27),
        ("DEPTHWISE_CONV_2D", [(1, 9, 9, 6), (1, 5, 5, 6), (6,)], (1, 9, 9, 6), 81 * 6 * 25),
        ("TRANSPOSE_CONV", [(4,), (8, 2, 2, 3), (1, 5, 5, 3)], (1, 10, 10, 8), 25 * 3 * 8 * 4),
        ("BATCH_MATMUL", [(2, 4, 5), (2, 5, 6)], (2, 4, 6), 2 * 4 * 6 * 5),
        ("ADD", [(1, 9), (9,)], (1, 9), 0),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", [(1, 9)], (1, 9), None),
    ],
)
def test_work_of_tflite_operators_is_that_of_their_shapes(tmp_path, code, reads, written, macs):
    network = open_tflite(linear_tflite(tmp_path / "m.tflite")[0])
    tensors = [replace(network.tensors[0], shape=shape, stored=None) for shape in (*reads, written)]
    operator = replace(network.operators[0], code=code, inputs=tuple(range(len(reads))), outputs=(len(reads),), settings={})
    assert tflite_macs(replace(network, tensors=tensors, operators=[operator])) == macs


@pytest.mark.parametrize("name", ["m.onnx", "m.tflite"])
@pytest.mark.parametrize("content", [b"", b"nonsense", bytes(1000)])
def test_damaged_file_is_refused_by_its_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StretchError, match=name):
        open_subject(str(tmp_path / name), {}, 0, tmp_path)


def test_weights_outside_of_the_files_folder_are_refused(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx")
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../secret")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(StretchError, match="outside of its folder"):
        open_subject(str(path), {}, 0, tmp_path)


@pytest.mark.parametrize("rows", [1, 4])
def test_tflite_file_gives_what_numpy_gives_also_of_another_batch(tmp_path, rows):
    if unavailable("litert") is not None:
        pytest.skip("litert is not installed")
    path, linear = linear_tflite(tmp_path / "m.tflite", opened=True)
    subject = open_subject(str(path), {"x": (rows, 5)}, 0, tmp_path)
    ready = prepare(subject, "litert", available_cores()[:1])
    assert ready.time() > 0
    (output,) = ready.outputs().values()
    np.testing.assert_allclose(output, linear(subject.inputs["x"]), rtol=1e-5, atol=1e-5)


IMAGE = FileEnd("x", (None, 3, None, None), "float32")


def test_hash_is_that_of_the_file_and_of_weights_beside_it(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "w").write_bytes(b"weights")
    assert digest("onnx", tmp_path / "m.onnx") == (hashlib.sha256(b"model").hexdigest(), 5)
    assert digest("onnx", tmp_path / "m.onnx", ["w"]) == (hashlib.sha256(b"modelweights").hexdigest(), 12)
    with pytest.raises(StretchError, match="cannot read"):
        digest("onnx", tmp_path / "m.onnx", ["gone"])


@pytest.mark.parametrize("requested", [{"x": (1, 4, 8, 8)}, {"x": (1, 3, 8)}])
def test_size_that_contradicts_the_file_is_refused(tmp_path, requested):
    with pytest.raises(UsageError, match="is requested"):
        settled(tmp_path, [IMAGE], requested)


def test_huge_input_is_refused(tmp_path):
    with pytest.raises(StretchError, match="has the shape"):
        settled(tmp_path, [IMAGE], {UNNAMED: (1 << 15, 3, 1 << 15, 1 << 15)})
    with pytest.raises(StretchError, match="has 0 inputs"):
        settled(tmp_path, [], {})


@given(st.sampled_from(["float32", "float16", "int8", "uint8", "int64", "bool"]), st.integers(0, 99))
def test_numbers_are_of_the_type_finite_and_those_of_the_seed(dtype, seed):
    first, again, other = (random_arrays({"x": (dtype, (4, 50))}, value) for value in (seed, seed, seed + 1))
    assert first["x"].dtype == np.dtype(dtype)
    assert np.isfinite(first["x"].astype(float)).all()
    assert hash_of(first) == hash_of(again) != hash_of(other)
    if dtype == "int64":
        assert set(np.unique(first["x"])) <= {0, 1}


def measured(*what, **others):
    return compare(BenchRequest([str(item) for item in what], effort=MeasurementLength(rounds=3, starts=2, warmup=4), **others))


def test_same_seed_gives_the_same_input(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx")
    hashes = [measured(path, runtimes=["onnxruntime"], seed=seed).files[0].input_sha256 for seed in (1, 1, 2)]
    assert hashes[0] == hashes[1] != hashes[2]


@pytest.mark.slow
@pytest.mark.torch
def test_bundle_is_compared_with_its_own_whole_model(tiny_bundle):
    answer = measured(tiny_bundle / "model.onnx", tiny_bundle, runtimes=["onnxruntime"])
    whole, bundle = answer.contenders
    assert (whole.runtime, bundle.runtime) == ("onnxruntime", "scheduler")
    assert bundle.max_error < 1e-3
    assert bundle.macs_ratio == pytest.approx(1, rel=0.02)


def test_file_that_no_runtime_loads_is_refused_and_one_that_some_do_is_left_out_there(tmp_path):
    odd = onnx_model([onnx.helper.make_node("NoSuchOperator", ["x"], ["y"])], {"x": (1, 2)}, {"y": (1, 2)})
    onnx.save(odd, tmp_path / "odd.onnx")
    with pytest.raises(StretchError, match=r"odd\.onnx"):
        measured(tmp_path / "odd.onnx")


def test_what_makes_no_sense_is_refused(tmp_path):
    path = conv_onnx(tmp_path / "m.onnx", inputs=2)
    for wrong, says in (
        ({"runtimes": ["litert"]}, "none of litert runs" if unavailable("litert") is None else "cannot be used"),
        ({"inputs": {"q": (1, 2)}}, "no file has an input `q`"),
        ({"inputs": {"": (1, 2, 3)}}, "names no input"),
        ({"cores": 10_000}, "10000 cores are requested"),
    ):
        with pytest.raises(StretchError, match=says):
            measured(path, **wrong)
    with pytest.raises(UsageError, match="0 files are given"):
        measured()


@pytest.mark.parametrize(
    ("got", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.25),
        ([1.0], [1.0, 2.0], None),
        ([1.0, np.nan], [1.0, 2.0], None),
        ([1.0, np.inf], [1.0, 2.0], None),
    ],
)
def test_largest_error_is_over_the_largest_element(got, expected, error):
    assert largest_error({"y": np.array(got)}, {"y": np.array(expected)}) == error
    assert largest_error({"y": np.array(got)}, {"z": np.array(expected)}) is None


def contender(name, ns, first=None):
    return BenchContender(
        name=name,
        file=name,
        runtime="onnxruntime",
        runtime_version="1",
        threads=1,
        steady=True,
        summary=summarise(ns, first or ns),
        macs_ratio=None,
        max_error=None,
        compared_with=None,
        ns=ns,
    )


def drawn(middle, seed):
    rng = np.random.default_rng(seed)
    return [[int(n) for n in middle * rng.lognormal(0, 0.01, 30)] for _ in range(5)]


def test_summary_is_of_all_rounds_in_milliseconds():
    ns, first = drawn(3e6, 1), drawn(2e6, 2)
    result = summarise(ns, first)
    every = np.concatenate(ns)
    assert result.median_ms == pytest.approx(np.median(every) / 1e6)
    assert result.p90_ms == pytest.approx(np.percentile(every, 90) / 1e6)
    assert result.ratio == pytest.approx(np.median(every / np.concatenate(first)))
    assert result.repeat_low_ms < result.low_ms < result.median_ms < result.high_ms < result.repeat_high_ms


def test_fastest_is_named_only_if_rounds_tell_it_from_all_others():
    slow, fast = contender("slow", drawn(4e6, 1)), contender("fast", drawn(2e6, 2))
    assert verdict([slow, fast]).startswith("fast takes 2 ms, the least: slow, the next, takes 2.0")
    even = contender("even", drawn(2e6, 3))
    assert verdict([slow, fast, even]).startswith("no clear winner: ")
    assert "slow" not in verdict([slow, fast, even])
    assert "no clear winner" in verdict([contender("a", [[1000]]), contender("b", [[9000]])])  # single rounds
    assert verdict([slow]) == "slow takes 4 ms; nothing was compared with it" or "nothing was compared" in verdict([slow])


class Noting(Ready):
    """A contender that writes down its runs and takes as long as it is told."""

    def __init__(self, name, log, ns=lambda run: 1000):
        self.name, self.log, self.ns, self.runs = name, log, ns, 0
        log.append(f"made {name}")

    def time(self):
        self.runs += 1
        self.log.append(self.name)
        return self.ns(self.runs)

    def outputs(self):
        return {"y": np.full(2, self.runs)}

    def close(self):
        self.log.append(f"closed {self.name}")


def test_every_start_makes_all_anew_warms_them_up_and_closes_them():
    log = []
    result = play({name: (lambda name=name: Noting(name, log)) for name in "ab"}, MeasurementLength(rounds=3, starts=2), seed=0)
    assert result.ns == {"a": [[1000] * 3] * 2, "b": [[1000] * 3] * 2}
    assert result.warmup == [2 * WINDOW] * 2
    assert result.steady == {"a", "b"}
    assert [word for word in log if " " in word] == ["made a", "made b", "closed b", "closed a"] * 2
    assert log.count("a") == log.count("b") == 2 * (2 * WINDOW + 3)


def test_order_is_drawn_anew_in_each_round_and_is_that_of_the_seed():
    def order(seed):
        log = []
        play({name: (lambda name=name: Noting(name, log)) for name in "abc"}, MeasurementLength(rounds=30, starts=1, warmup=0), seed)
        runs = [word for word in log if len(word) == 1]
        return [tuple(runs[i : i + 3]) for i in range(0, len(runs), 3)]

    rounds = order(0)
    assert all(set(item) == set("abc") for item in rounds)
    assert len(set(rounds)) > 3
    assert rounds == order(0) != order(1)


@pytest.mark.parametrize(("factor", "starts"), [(1.0, LEAST_STARTS), (3.0, MOST_STARTS)])
def test_starts_go_on_until_medians_are_known_to_the_width(factor, starts):
    rows = []

    def make():
        rows.append(1)
        scale = factor ** (len(rows) % 2)
        return Noting("a", [], lambda run: round(1000 * scale))

    result = play({"a": make}, MeasurementLength(rounds=2, starts=MOST_STARTS, width=0.02, warmup=0), seed=0)
    assert len(result.ns["a"]) == starts


def test_times_hold_once_two_windows_agree():
    assert holds([9000] * 20 + [1000] * 2 * WINDOW)
    assert not holds([1000 - 40 * i for i in range(2 * WINDOW)])
    assert not holds([1000] * WINDOW + [1100] * WINDOW)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"starts": 0}, {"starts": MOST_STARTS + 1}, {"warmup": -1}, {"width": 0.0}, {"width": float("nan")}]
)
def test_effort_that_is_none_is_refused(wrong):
    with pytest.raises(UsageError):
        MeasurementLength(**wrong)


def test_interval_of_starts_of_one_round_is_students_on_logarithms():
    stats = pytest.importorskip("scipy.stats")
    values = [3.0, 3.1, 2.9, 3.3, 3.2]
    logs = np.log(values)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    result = known([[value] for value in values])
    assert (result.low, result.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=math.sqrt(2) * stats.sem(logs))
    assert (result.repeat_low, result.repeat_high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


def test_one_round_has_no_interval_and_no_side():
    result = known([[2.0]])
    assert (result.low, result.high, result.repeat_low, result.repeat_high) == (None, None, None, None)
    assert (result.side, result.width) == (0, math.inf)


@pytest.mark.parametrize(("load", "message"), [(0.0, False), (5.0, True), (None, False)])
def test_busy_machine_is_told(load, message):
    empty = {name: {} for name in ("governors", "mhz_before", "mhz_after", "celsius_before", "celsius_after")}
    conditions = Conditions(
        processor="p", system="s", cores=[0], process_cores=[0, 1], load_before=load, load_after=0.0, stolen=None, busy=None, **empty
    )
    assert any("busy in the minute before" in warning for warning in conditions.warnings) is message


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A measurement as JSON, of a file that is there."""
    folder = tmp_path_factory.mktemp("check")
    paths = [str(conv_onnx(folder / name)) for name in ("a.onnx", "b.onnx")]
    answer = compare(BenchRequest(paths, runtimes=["onnxruntime"], effort=MeasurementLength(rounds=4, starts=3, warmup=0)))
    return json.loads(msgspec.json.encode(answer))


def check(tmp_path, record):
    path = tmp_path / "m.json"
    path.write_text(json.dumps(record))
    return check_bench(path)


def changed(record, *path, to):
    copy = json.loads(json.dumps(record))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return copy


def test_sound_measurement_is_confirmed(tmp_path, record):
    checked = check(tmp_path, record | {"schema": 1, "version": "0"})
    assert (checked.ok, checked.problems, checked.contenders, checked.rounds) == (True, [], 2, 24)


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("contenders", 1, "summary", "median_ms"), 1e-5, "median_ms of b.onnx, onnxruntime is stated as 1e-05"),
        (("contenders", 1, "summary", "low_ms"), None, "low_ms of b.onnx"),
        (("contenders", 1, "summary", "ratio"), 0.5, "ratio of b.onnx"),
        (("contenders", 0, "ns", 0), [10**12] * 4, "of a.onnx, onnxruntime is stated"),
        (("contenders", 1, "macs_ratio"), 0.5, "macs_ratio of b.onnx"),
        (("files", 0, "macs"), 1, "macs_ratio of b.onnx"),
        (("files", 0, "sha256"), "0" * 64, "a.onnx is another file here"),
        (("files", 0, "path"), "gone.onnx", "a.onnx cannot be compared"),
        (("files", 0, "path"), "/dev/zero", "a.onnx cannot be compared"),
        (("verdict",), "b.onnx wins", "its verdict is not what its times say"),
        (("contenders", 1, "name"), "a.onnx, onnxruntime", "two contenders have one name"),
        (("contenders", 1, "file"), "c.onnx", "none of the files"),
        (("contenders", 1, "ns"), [[1, 2, 3, 4]], "has not 4 rounds in each of 3 starts"),
        (("files", 1, "name"), "a.onnx", "two files have one name"),
    ],
)
def test_what_was_changed_is_found(tmp_path, record, path, to, says):
    checked = check(tmp_path, changed(record, *path, to=to))
    assert not checked.ok
    assert any(says in problem for problem in checked.problems), checked.problems


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_sentence(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "m.json"
    path.write_bytes(data)
    with pytest.raises(StretchError, match="is no measurement") as error:
        read_bench(path)
    assert "\n" not in error.value.message
