import re

from scheduler.service.service import OUTCOMES, Counters


def test_text_has_the_form_that_prometheus_reads():
    counters = Counters(["a", 'b"\n'])
    counters.note("a", "done", 0.003)
    counters.note("a", "late", 20.0)
    counters.note('b"\n', "refused")
    text = counters.text(3, {"a": 1, 'b"\n': 0})
    # metric, labels and number, as the format's grammar has it
    sample = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\\n]|\\["\\n])*"(,[a-z]+="([^"\\\n]|\\["\\n])*")*\})? [0-9.e+-]+')
    for line in text.splitlines():
        assert line.startswith(("# HELP ", "# TYPE ")) or sample.fullmatch(line), line
    assert 'nn_stretch_requests_total{model="a",outcome="done"} 1' in text
    assert 'nn_stretch_requests_total{model="b\\"\\n",outcome="refused"} 1' in text
    assert "nn_stretch_waiting 3" in text
    assert text.endswith("\n")


def test_classes_of_latency_add_up():
    counters = Counters(["a"])
    for seconds in (0.0005, 0.001, 0.003, 0.2, 99.0):
        counters.note("a", "done", seconds)
    text = counters.text(0, {"a": 0})
    counts = [int(each) for each in re.findall(r'_bucket\{model="a",le="[^"]+"\} (\d+)', text)]
    assert counts == sorted(counts)
    assert counts[0] == 2
    assert counts[-1] == 5
    assert 'nn_stretch_latency_seconds_count{model="a"} 5' in text


def test_every_end_is_counted():
    counters = Counters(["a"])
    for outcome in OUTCOMES:
        counters.note("a", outcome)
    assert counters.outcomes("a") == dict.fromkeys(OUTCOMES, 1)
