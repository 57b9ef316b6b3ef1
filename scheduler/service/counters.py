"""What is counted of a service's requests, and the text that Prometheus reads."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection

#: Upper ends of the classes of latency, s: from a small network on a desktop to a large one on a phone.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

#: What may become of a request.
OUTCOMES = ("done", "late", "failed", "expired", "refused", "cancelled")

_HELP = {
    "nn_stretch_requests_total": ("counter", "Requests by what became of them."),
    "nn_stretch_latency_seconds": ("histogram", "Time from request to output, waiting included, of requests that were computed."),
    "nn_stretch_waiting": ("gauge", "Requests that wait."),
    "nn_stretch_running": ("gauge", "Inferences in flight."),
}


class Counters:
    """Counts by model, from any thread.

    Args:
        models: Names of the models.
    """

    def __init__(self, models: Collection[str]) -> None:
        self._lock = threading.Lock()
        self._outcomes = {model: Counter(dict.fromkeys(OUTCOMES, 0)) for model in models}
        self._classes = {model: [0] * (len(BUCKETS) + 1) for model in models}
        self._seconds = dict.fromkeys(models, 0.0)

    def note(self, model: str, outcome: str, seconds: float | None = None) -> None:
        """A request has come to its end.

        Args:
            outcome: One of `OUTCOMES`.
        """
        with self._lock:
            self._outcomes[model][outcome] += 1
            if seconds is not None:
                self._classes[model][bisect_left(BUCKETS, seconds)] += 1
                self._seconds[model] += seconds

    def outcomes(self, model: str) -> dict[str, int]:
        """How many requests of a model came to each end."""
        with self._lock:
            return dict(self._outcomes[model])

    def text(self, waiting: int, running: dict[str, int]) -> str:
        """All of it in Prometheus' text format.

        Args:
            running: Inferences in flight now, by model.
        """
        with self._lock:
            lines = {
                "nn_stretch_requests_total": [
                    f'{{{_label(model)},outcome="{outcome}"}} {count}'
                    for model, outcomes in self._outcomes.items()
                    for outcome, count in outcomes.items()
                ],
                "nn_stretch_latency_seconds": [line for model in self._classes for line in self._histogram(model)],
                "nn_stretch_waiting": [f" {waiting}"],
                "nn_stretch_running": [f"{{{_label(model)}}} {count}" for model, count in running.items()],
            }
        lines_of_text = []
        for name, (kind, words) in _HELP.items():
            lines_of_text += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *(f"{name}{line}" for line in lines[name])]
        return "\n".join(lines_of_text) + "\n"

    def _histogram(self, model: str) -> list[str]:
        lines, total = [], 0
        for end, count in zip((*map(str, BUCKETS), "+Inf"), self._classes[model], strict=True):
            total += count
            lines.append(f'_bucket{{{_label(model)},le="{end}"}} {total}')
        return [*lines, f"_sum{{{_label(model)}}} {self._seconds[model]:.9g}", f"_count{{{_label(model)}}} {total}"]


def _label(model: str) -> str:
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'model="{escaped}"'
