"""Measurements of others: computed again, compared with the files here, and refused where they are none."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.measure.bench.check import check_bench, read_bench
from scheduler.measure.bench.compare import Request, compare
from scheduler.measure.bench.rounds import Effort
from tests.scheduler.measure.bench.nets import conv_onnx


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A measurement as JSON, of a file that is there."""
    folder = tmp_path_factory.mktemp("check")
    paths = [str(conv_onnx(folder / name)) for name in ("a.onnx", "b.onnx")]
    answer = compare(Request(paths, runtimes=["onnxruntime"], effort=Effort(rounds=4, starts=3, warmup=0)), lambda sentence: None)
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
    found = check(tmp_path, record | {"schema": 1, "version": "0"})
    assert (found.ok, found.problems, found.contenders, found.rounds) == (True, [], 2, 24)


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
    found = check(tmp_path, changed(record, *path, to=to))
    assert not found.ok
    assert any(says in problem for problem in found.problems), found.problems


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("contenders", 0, "ns", 0, 0), 0),
        (("contenders", 0, "ns", 0, 0), -5),
        (("contenders", 0, "ns", 0, 0), 10**30),
        (("contenders", 0, "ns", 0, 0), 1.5),
        (("contenders", 0, "ns"), []),
        (("contenders", 0, "ns", 0), []),
        (("contenders",), []),
        (("starts",), 9),
        (("files", 0, "kind"), "pickle"),
        (("files", 0, "sha256"), "x"),
        (("conditions",), None),
        (("source",), "paper"),
    ],
)
def test_what_is_no_measurement_is_refused(tmp_path, record, path, to):
    with pytest.raises(StretchError, match="is no measurement"):
        check(tmp_path, changed(record, *path, to=to))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_sentence(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("bytes") / "m.json"
    path.write_bytes(data)
    with pytest.raises(StretchError, match="is no measurement") as error:
        read_bench(path)
    assert "\n" not in error.value.message


def test_missing_file_and_folder_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "gone.json"):
        with pytest.raises(StretchError, match="cannot read the measurement"):
            read_bench(path)
