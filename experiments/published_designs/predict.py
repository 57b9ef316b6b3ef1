"""Published designs predicted, beside what was measured of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from statistics import mean, median

from experiments.networks import graph_of
from experiments.published_designs.designs_file import PublishedDesign
from experiments.published_designs.tables import differences, draft_of
from experiments.records import ROOT, Row
from predictors.devices import DeviceProfile, load_device
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from predictors.rewrites import laid_out, rewritten
from scheduler.simulate.clock import Clock
from scheduler.simulate.scene import Scene
from stretch.planning.design.scale import aligns, resolve_design
from stretch.planning.plan import PlanningProblem, evaluate
from stretch.planning.result import PlanResult
from stretch.stages.together import network_of


@dataclass(frozen=True)
class Basis:
    """What predictions are made from."""

    name: str  # Profile: of version 0.1.0, as it is now, ``fitted``, or calibrated by the release's single processors, ``release``.


#: Bases of the record. Nothing of the designs' times went into any of them; a few times of whole networks on single
#: processors did into the first, and three networks into the last.
BASES = (Basis("0.1.0"), Basis("fitted"), Basis("release"))


def profile(basis: Basis, device: str) -> DeviceProfile:
    """The profile of a device as version 0.1.0 had it, which tests keep as a file, as it is now, or calibrated by the release."""
    files = {"0.1.0": str(ROOT / "tests" / "predictors" / "profiles" / f"{device}.toml"), "release": f"{device}-release"}
    return load_device(files.get(basis.name, device))


@cache
def _network(model: str, changes: tuple[str, ...]) -> OpGraph:
    return rewritten(graph_of(model), changes)[0] if changes else graph_of(model)


def network(design: PublishedDesign) -> OpGraph:
    """The network that a design is one of, with what its authors changed in all of it.

    Args:
        design: The design.
    """
    return _network(design.model, design.changes)


@dataclass(frozen=True)
class Prediction:
    """A design on a device."""

    design: PublishedDesign  # As published.
    basis: Basis  # What it was predicted from.
    device: DeviceProfile  # The device's profile.
    graph: OpGraph  # The network.
    result: PlanResult | None  # Its prediction; None for the network as it is.
    differs: tuple[str, ...]  # Where its blocks are not those of pycls.

    def alone_ms(self, processor: str) -> float:
        """The network as it is on a processor of the file, ms."""
        precision = self.device.processor(processor).check_precision(None)
        # operators that compute the same in another way; others are of branches alone
        graph = laid_out(self.graph, self.design.rewrites.get(processor, ()))[0]
        return LatencyPredictor(self.device).predict(graph, processor, precision).ms

    def anchored_ms(self) -> float | None:
        """The makespan if each processor were as fast as it was measured to be on the network as it is.

        Computing of each branch takes measured over predicted time of its processor as long; exchanges and joins stay.
        None where a processor's own time was not measured. No time of a design goes into it.
        """
        if self.result is None or not set(self.design.branches) <= set(self.design.alone):
            return None
        request = PlanningProblem.of(self.graph, self.device, self.result.config)
        built = network_of("published", self.result.run, request.costs)
        factors = {self.device.processor(name).family: self.design.alone[name] / self.alone_ms(name) for name in self.design.branches}
        times = {
            step: replace(
                time,
                parts=tuple((doing, ms * factors.get(time.processor, 1.0) if doing == "subgraph" else ms) for doing, ms in time.parts),
            )
            for step, time in built.times.items()
        }
        return Clock(replace(built, times=times), Scene()).run().latencies_ms[0]


def predict(design: PublishedDesign, basis: Basis) -> Prediction:
    """A design on its device.

    Args:
        design: The design.
        basis: What to predict it from.

    Raises:
        StretchError: If it does not fit its network.
        UnknownNameError: If the device lacks a processor.
    """
    device, graph = profile(basis, design.device), network(design)
    if not design.branches:
        return Prediction(design, basis, device, graph, None, ())
    host = design.host or next((name for name in design.branches if name.startswith("cpu")), design.processors[0])
    draft = draft_of(graph, design.branches, host, design.join, design.rewrites)
    built = resolve_design(draft, graph, design.device, aligns(device, dict.fromkeys((*design.branches, host))), host)
    return Prediction(design, basis, device, graph, evaluate(graph, device, built), tuple(differences(graph, built, design.branches)))


def design_row(prediction: Prediction) -> Row:
    """What is told of a design.

    Args:
        prediction: Of a design with branches.
    """
    design, result = prediction.design, prediction.result
    assert result is not None
    measured, makespan_ms, anchored = design.ms, result.run.makespan_ms, prediction.anchored_ms()
    current = {name: prediction.alone_ms(name) for name in design.alone}
    fastest = min(design.alone, key=lambda name: design.alone[name]) if design.alone else None
    certain = result.certainty
    return {
        "design and profile": f"{design.name}, {prediction.basis.name}",
        "processors": ",".join(design.processors),
        "measured ms": measured,
        "predicted ms": round(makespan_ms, 2),
        "low ms": round(certain.makespan_low_ms, 2),
        "high ms": round(certain.makespan_high_ms, 2),
        "error %": None if measured is None else round(100 * (makespan_ms / measured - 1), 1),
        "in the interval": None if measured is None else certain.makespan_low_ms <= measured <= certain.makespan_high_ms,
        "with measured processors ms": None if anchored is None else round(anchored, 2),
        "its error %": None if anchored is None or measured is None else round(100 * (anchored / measured - 1), 1),
        "measured speed-up": None if fastest is None or measured is None else round(design.alone[fastest] / measured, 3),
        "predicted speed-up": round((min(current.values()) if current else result.best_single.ms) / makespan_ms, 3),
        "exchanges %": round(100 * result.run.communication_ms / makespan_ms, 1),
        "MACs ratio": round(result.macs_ratio, 3),
        "MACs over published": None if design.macs is None else round(result.run.macs / (1e9 * design.macs), 3),
        "differs": "; ".join(prediction.differs) or None,
    }


def alone_rows(predictions: Iterable[Prediction]) -> list[Row]:
    """Measured and predicted times of networks on single processors, each once.

    Args:
        predictions: Of designs or networks, all of one basis or several.
    """
    rows: dict[str, Row] = {}
    for prediction in predictions:
        for processor, measured in prediction.design.alone.items():
            name = f"{prediction.design.model} on {processor} of {prediction.design.device}, {prediction.basis.name}"
            if name not in rows:
                alone_ms = prediction.alone_ms(processor)
                rows[name] = {
                    "network, processor and profile": name,
                    "measured ms": measured,
                    "predicted ms": round(alone_ms, 2),
                    "error %": round(100 * (alone_ms / measured - 1), 1),
                }
    return list(rows.values())


def errors(rows: Iterable[Mapping[str, object]], name: str, what: str, column: str) -> Row | None:
    """How far predictions are off; None where nothing was measured.

    Args:
        rows: Of designs or networks, of one basis.
        name: Of the basis.
        what: Of the rows, in words.
        column: Of the errors, per cent.
    """
    numbers = [float(str(row[column])) for row in rows if row.get(column) is not None]
    if not numbers:
        return None
    inside = [bool(row["in the interval"]) for row in rows if row.get("in the interval") is not None and column == "error %"]
    return {
        "profile and what": f"{name}: {what}",
        "number": len(numbers),
        "mean error %": round(mean(map(abs, numbers)), 1),
        "predicted ÷ measured, median": round(median(1 + number / 100 for number in numbers), 3),
        "within ±10 %": sum(abs(number) <= 10 for number in numbers),
        "within ±20 %": sum(abs(number) <= 20 for number in numbers),
        "in the 90 % interval": sum(inside) if inside else None,
    }
