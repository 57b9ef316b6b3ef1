"""Rounds of a comparison, what they say, and records of them."""

import json
import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError, UsageError
from scheduler.measure.bench.check import check_bench, read_bench
from scheduler.measure.bench.compare import Request, compare
from scheduler.measure.bench.conditions import Conditions, conditions, look
from scheduler.measure.bench.interval import MOST_STARTS, known
from scheduler.measure.bench.rounds import LEAST_STARTS, WINDOW, Effort, holds, play
from scheduler.measure.bench.runtimes import Ready
from tests.scheduler.measure.bench.nets import conv_onnx


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
    found = play({name: (lambda name=name: Noting(name, log)) for name in "ab"}, Effort(rounds=3, starts=2), seed=0)
    assert found.ns == {"a": [[1000] * 3] * 2, "b": [[1000] * 3] * 2}
    assert found.warmup == [2 * WINDOW] * 2
    assert found.steady == {"a", "b"}
    assert [word for word in log if " " in word] == ["made a", "made b", "closed b", "closed a"] * 2
    assert log.count("a") == log.count("b") == 2 * (2 * WINDOW + 3)


def test_order_is_drawn_anew_in_each_round_and_is_that_of_the_seed():
    def order(seed):
        log = []
        play({name: (lambda name=name: Noting(name, log)) for name in "abc"}, Effort(rounds=30, starts=1, warmup=0), seed)
        runs = [word for word in log if len(word) == 1]
        return [tuple(runs[i : i + 3]) for i in range(0, len(runs), 3)]

    rounds = order(0)
    assert all(set(each) == set("abc") for each in rounds)
    assert len(set(rounds)) > 3
    assert rounds == order(0) != order(1)


def test_contender_whose_times_never_hold_is_named():
    found = play(
        {"calm": lambda: Noting("calm", []), "wild": lambda: Noting("wild", [], lambda run: 1000 << (run % 2))},
        Effort(rounds=2, starts=1, warmup=20),
        seed=0,
    )
    assert found.warmup == [20]
    assert found.steady == {"calm"}


@pytest.mark.parametrize(("factor", "starts"), [(1.0, LEAST_STARTS), (3.0, MOST_STARTS)])
def test_starts_go_on_until_medians_are_known_to_the_width(factor, starts):
    made = []

    def make():
        made.append(1)
        scale = factor ** (len(made) % 2)
        return Noting("a", [], lambda run: round(1000 * scale))

    found = play({"a": make}, Effort(rounds=2, starts=MOST_STARTS, width=0.02, warmup=0), seed=0)
    assert len(found.ns["a"]) == starts


def test_contenders_that_were_made_are_closed_if_another_cannot_be():
    log = []

    def broken():
        raise StretchError("no")

    with pytest.raises(StretchError):
        play({"a": lambda: Noting("a", log), "b": broken}, Effort(), seed=0)
    assert log == ["made a", "closed a"]


def test_times_hold_once_two_windows_agree():
    assert holds([9000] * 20 + [1000] * 2 * WINDOW)
    assert not holds([1000 - 40 * i for i in range(2 * WINDOW)])
    assert not holds([1000] * WINDOW + [1100] * WINDOW)


@pytest.mark.parametrize(
    "wrong", [{"rounds": 0}, {"starts": 0}, {"starts": MOST_STARTS + 1}, {"warmup": -1}, {"width": 0.0}, {"width": float("nan")}]
)
def test_effort_that_is_none_is_refused(wrong):
    with pytest.raises(UsageError):
        Effort(**wrong)


times = st.lists(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=12), min_size=1, max_size=MOST_STARTS)


def test_interval_of_starts_of_one_round_is_students_on_logarithms():
    stats = pytest.importorskip("scipy.stats")
    values = [3.0, 3.1, 2.9, 3.3, 3.2]
    logs = np.log(values)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=stats.sem(logs))
    found = known([[each] for each in values])
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)
    low, high = stats.t.interval(0.95, len(logs) - 1, loc=logs.mean(), scale=math.sqrt(2) * stats.sem(logs))
    assert (found.repeat_low, found.repeat_high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


def test_one_round_has_no_interval_and_no_side():
    found = known([[2.0]])
    assert (found.low, found.high, found.repeat_low, found.repeat_high) == (None, None, None, None)
    assert (found.side, found.width) == (0, math.inf)


@pytest.mark.slow
def test_rounds_that_resemble_their_neighbours_do_not_make_one_start_look_surer_than_it_is():
    rng = np.random.default_rng(5)

    def drifting(rounds=400):
        noise = np.zeros(rounds)
        for i in range(1, rounds):
            noise[i] = 0.9 * noise[i - 1] + rng.normal(0, 0.01)
        return 10 * np.exp(noise)

    found = [known([drifting()]) for _ in range(200)]
    held = np.mean([each.low <= 10 <= each.high for each in found])
    naive = []
    for _ in range(200):
        each = np.log(drifting())
        half = 1.2533 * 1.96 * each.std() / math.sqrt(len(each))
        naive.append(abs(np.median(each) - math.log(10)) <= half)
    assert held >= 0.85 > np.mean(naive) + 0.1


def tree(root, ticks, celsius, khz="1800000", governor="powersave"):
    """A machine of two cores."""
    for core in (0, 1):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scaling_cur_freq").write_text(khz)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    for i, degrees in enumerate(celsius):
        zone = root / f"sys/class/thermal/thermal_zone{i}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "type").write_text("chip\n")
        (zone / "temp").write_text(degrees)
    (root / "proc").mkdir(exist_ok=True)
    rows = "".join(f"cpu{core} {' '.join(map(str, ticks))} 0 0\n" for core in (0, 1))
    (root / "proc/stat").write_text(f"cpu  1 1 1 1 1 1 1 1 0 0\n{rows}intr 5\n")


def seen(root, before, after, cores=(0, 1)):
    tree(root, **before)
    one = look(cores, root)
    tree(root, **after)
    return conditions(one, look(cores, root), processor="p", system="s", cores=cores, process_cores=cores)


def test_shares_frequencies_and_temperatures_are_those_of_the_files(tmp_path):
    before = {"ticks": (0, 0, 0, 100, 0, 0, 0, 0), "celsius": ["40000", "55500"]}
    after = {"ticks": (60, 0, 10, 110, 10, 0, 0, 10), "celsius": ["41000", "70000"], "khz": "900000"}
    found = seen(tmp_path, before, after)
    # of 100 ticks that passed on each core 20 were idle and 10 stolen
    assert (found.stolen, found.busy) == (0.1, 0.7)
    assert (found.mhz_before, found.mhz_after) == ({"0": 1800.0, "1": 1800.0}, {"0": 900.0, "1": 900.0})
    assert (found.celsius_before, found.celsius_after) == ({"chip": 55.5}, {"chip": 70.0})
    words = " ".join(found.warnings)
    assert "the host gave 10.0% of the cores' time to others" in words
    assert "warmed up by 14 °C" in words


@pytest.mark.parametrize("text", ["", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "nothing"])
def test_what_the_system_does_not_tell_is_unknown(tmp_path, text):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    found = look((0,), tmp_path)
    assert (found.mhz, found.celsius, found.ticks) == ({}, {}, None)
    known = conditions(found, found, processor="p", system="s", cores=(0,), process_cores=(0,))
    assert (known.stolen, known.busy) == (None, None)


@pytest.mark.parametrize(("load", "told"), [(0.0, False), (5.0, True), (None, False)])
def test_busy_machine_is_told(load, told):
    empty = {name: {} for name in ("governors", "mhz_before", "mhz_after", "celsius_before", "celsius_after")}
    found = Conditions(
        processor="p", system="s", cores=[0], process_cores=[0, 1], load_before=load, load_after=0.0, stolen=None, busy=None, **empty
    )
    assert any("busy in the minute before" in each for each in found.warnings) is told


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
