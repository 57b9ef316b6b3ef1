import re

from scheduler.service.counters import Counters


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
