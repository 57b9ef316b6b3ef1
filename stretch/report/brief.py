"""Brief answers at the start of terminal output and pages: answer, numbers, reason, confidence, next command."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.answer import RunAnswer
from scheduler.simulate.answer import SimulateAnswer
from stretch.planning.cost.compare import BASELINES, BRANCHED, NO_CLEAR_WINNER, baseline
from stretch.planning.cost.makespan import HANDOVER_SHARE, computing_spans, parallel_ms
from stretch.planning.messages import command_line, format_probability
from stretch.report.html.page import Grid

if TYPE_CHECKING:
    from predictors.models.roofline import Origin
    from scheduler.bundle.agreement import Agreement
    from stretch.planning.cost.compare import ControlComparison
    from stretch.planning.pareto import FrontAnswer
    from stretch.planning.result import Kept, PlanResult, Shortened
    from stretch.report.compared import CompareAnswer
    from stretch.stages.advise import Advice, BranchesAdvice, DeviceAdvice
    from stretch.stages.branched import Branched
    from stretch.stages.explain import Explanation
    from stretch.stages.predict import Prediction

#: Lines of a brief answer: sentences, wrapped at the terminal's width, and small tables.
Brief = list["str | Grid"]

#: Maximum number of rows in a brief table.
MOST_ROWS = 8

#: Text for a network whose file could not be run.
UNJUDGED_TEXT = "compared with nn-stretch's own reading of the file only, as the file itself could not be run"

#: Largest share of the time that is no reason against branches.
MINOR = 0.1

#: Factor between a predicted time and an end of its interval from which the confidence is low, whatever the time rests on.
UNCERTAIN = 2.0

#: End of a sentence on the alternative that is faster than branches.
INSTEAD = {
    "single": "is faster on the {} alone",
    "sequential_same_macs": "is faster as a sequential network",
    "shortened": "is as fast with fewer blocks on the {} alone",
    "whole_graph": "is faster as one graph on the {}",
}

#: Names of the measures by which networks keep a share of the original.
KEPT = {
    "measured": "measured agreement",
    "error": "1 less the measured error",
    "sensitivity": "predicted agreement",
    "blocks": "predicted share kept",
}

#: Short names of baselines that a plan may beat.
BEATEN = {"single": "original", "sequential_same_macs": "sequential network", "whole_graph": "same network as one graph"}

#: Display names of the sources of times.
SOURCES: "dict[Origin, str]" = {
    "fit": "measurements",
    "networks": "whole networks",
    "sibling": "the same chip",
    "similar": "similar chips",
    "relatives": "similar chips",
    "roofline": "data sheet",
}


def ms(value: float) -> str:
    """Format a time with three digits and its unit."""
    return f"{value:.3g} ms" if value < 1000 else f"{value:.0f} ms"


def share(value: float) -> str:
    """Format a share in percent."""
    return f"{100 * value:.0f} %"


def ratio(value: float, low: float | None = None, high: float | None = None) -> str:
    """Format a speed-up, above 1 is faster, with its 90 % interval if given."""
    return f"{value:.2f}x" + (f" ({ratio_range(low, high)})" if low is not None and high is not None else "")


def ratio_range(low: float, high: float) -> str:
    """Format the interval of a ratio; a very large upper end, as after few rounds, is left open."""
    return f"{low:.2f}-{high:.2f}" if high < 100 else f"{low:.2f} or more"


def plan_brief(plan: "PlanResult", built: "Branched | None", following: Sequence[str]) -> Brief:
    """Return the brief answer of `stretch branch`.

    Args:
        built: The built network; None for a plan only.
        following: Lines with the next commands.
    """
    predicted = plan.predicted
    single = next(control for control in plan.recommendation.compared if control.name.startswith("single:"))
    subject, gain = f"{plan.graph.name} on {plan.device.id}", ratio(single.ratio, single.low, single.high)
    used = " + ".join(plan.design.processors)
    if plan.recommended == BRANCHED:
        answer = f"Branching is recommended: {subject}, predicted {single.ratio:.2f}x faster ({single.low:.2f}-{single.high:.2f})."
    elif plan.recommended == NO_CLEAR_WINNER:
        answer = f"Too close to call: {subject}, branched is {gain}."
    else:
        kind, _, processor = plan.recommended.partition(":")
        kept = predicted.shortened.kept if kind == "shortened" and predicted.shortened else None
        answer = (
            f"Branching is not recommended: {subject} {INSTEAD.get(kind, '{}').format(processor)}{f', {kept_text(kept)}' if kept else ''}."
        )
    unjudged = plan.exact and built is not None and built.unjudged
    output = "needs training" if not plan.exact else "as read" if unjudged else "unchanged"
    shortened = predicted.shortened
    # only images reveal the loss of the shortened network
    fewer = "loss unknown" if shortened is None or shortened.kept is None else "needs training"
    alone = len(plan.design.processors) == 1
    rows = [(f"planned, {used} only" if alone else f"branched, {used}", ms(predicted.makespan_ms), "-", output)]
    for control in sorted(plan.recommendation.compared, key=lambda control: control.ms):
        if control.name.startswith("whole_graph") and plan.recommended != control.name:
            continue
        kind = control.name.partition(":")[0]
        output_note = {"single": "unchanged", "whole_graph": output, "shortened": fewer}.get(kind, "needs training")
        rows.append((baseline(control.name), ms(control.ms), ratio(control.ratio, control.low, control.high), output_note))
    if 1.005 * predicted.operator_split_ms < min(predicted.makespan_ms, predicted.best_single_ms):
        split = predicted.operator_split_ms
        rows.append(("original, operators split", ms(split), ratio(split / predicted.makespan_ms), "unchanged"))
    return [
        answer,
        Grid("", ("", "predicted", "planned is" if alone else "branched is", "output"), rows, right=(1,)),
        f"Why: {_reason(plan)}",
        *([f"Compare: {shortened_text(shortened)}."] if shortened and shortened.kept else []),
        f"Confidence: {_confidence(plan)}",
        *_agreement(None if built is None else built.agreement),
        *([f"Output: {UNJUDGED_TEXT}."] if unjudged else []),
        *following,
    ]


def kept_text(kept: "Kept") -> str:
    """Return a text on the shares of the original that the shortened network and branches keep."""
    images = f" on {kept.images} images" if kept.basis in ("measured", "error") else ""
    return f"{KEPT[kept.basis]} {share(kept.shortened)}, of branches {share(kept.branched)}{images}"


def shortened_text(shortened: "Shortened") -> str:
    """Return a text on the shortened network that is as fast on one processor, and on its accuracy."""
    kept = "loss unknown without images" if shortened.kept is None else kept_text(shortened.kept)
    return f"{shortened.summary}; {kept}"


def _agreement(agreement: "Agreement | None") -> Brief:
    """Return a line on the agreement of the branched network with the original, in fp32 and with the bundle's files."""
    if agreement is None:
        return []
    if agreement.value is None:
        return [f"Agreement: error of the outputs {share(agreement.error)} of the original's on {agreement.images} held-out images."]
    files = agreement.bundle
    rounded = "" if files is None or files.value is None else f", {share(files.value)} with the bundle's files"
    return [f"Agreement: the original's class on {share(agreement.value)} of {agreement.images} held-out images{rounded}."]


def _reason(plan: "PlanResult") -> str:
    predicted, points = plan.predicted, f"{plan.design.n_meet} meeting point{'' if plan.design.n_meet == 1 else 's'}"
    alone = len(plan.design.processors) == 1
    shape = f"{'no segment branches' if alone else points}, {share(plan.macs_ratio)} MACs"
    hands_over = parallel_ms(computing_spans(plan.run)) <= HANDOVER_SHARE * predicted.makespan_ms
    if hands_over and (plan.design.n_meet or plan.run.sides):
        shape += "; parts run one after the other, each where it is fast"
    # with one processor, transfers are only the input and the output
    transfers = "moving the input and the output takes" if alone else "transfers take"
    moved = f"{transfers} {share(predicted.communication_ms / predicted.makespan_ms)} of the time"
    if plan.recommended == BRANCHED:
        return f"{shape}; {moved}."
    if predicted.far_ahead:
        return f"the {predicted.far_ahead} is far ahead of the other processors; {shape}."
    if plan.recommended == NO_CLEAR_WINNER:
        closest = min(
            (r for r in plan.recommendation.compared if r.name not in predicted.reference), key=lambda control: control.probability
        )
        return f"{format_probability(closest.probability)} sure to beat the {_beaten(closest)}; {shape}."
    faster = [
        control for control in plan.recommendation.compared if control.name == plan.recommended and control.ms < predicted.makespan_ms
    ]
    if faster and not alone and predicted.communication_ms < MINOR * predicted.makespan_ms:
        return f"{format_probability(1 - faster[0].probability)} sure that the {_beaten(faster[0])} is faster; {shape}."
    return f"{shape}; {moved}."


def _beaten(control: "ControlComparison") -> str:
    return BEATEN.get(control.name.partition(":")[0], "network with fewer blocks")


def _confidence(plan: "PlanResult") -> str:
    sources: dict[str, list[str]] = {}
    for (name, precision), origin in plan.origins.items():
        sources.setdefault(SOURCES[origin], []).append(f"{name} {precision}")
    times = [(plan.predicted.makespan_ms, plan.predicted.makespan_low_ms, plan.predicted.makespan_high_ms)]
    times += [(control.ms, control.low_ms, control.high_ms) for control in plan.recommendation.compared]
    factor = max(max(high / middle, middle / low) for middle, low, high in times)
    level = "good" if plan.calibrated and factor < UNCERTAIN else "low"
    parts = [f"{' and '.join(names)} from {source}" for source, names in sources.items()]
    measure = plan.predicted.measure_next if level == "low" or plan.recommended == NO_CLEAR_WINNER else None
    parts += [f"times may be wrong by a factor of {factor:.2g}"] if plan.calibrated and level == "low" else []
    return f"{level} ({'; '.join(parts)})." + (f" Measure next: {measure}." if measure else "")


def advice_brief(advice: "Advice") -> Brief:
    """Return the brief answer of `stretch advise`."""
    good = [answer.device for answer in advice.answers if answer.recommended in ("exact", "stretched")]
    unclear = sum(answer.recommended == NO_CLEAR_WINNER for answer in advice.answers)
    count = len(advice.answers)
    these = "this device" if count == 1 else f"any of these {count} devices"
    answer = f"branching is recommended on {', '.join(good)}" if good else f"branching is not recommended on {these}"
    if unclear and not good:
        others = f"{unclear} of {count} devices, one processor is faster on the others" if unclear < count else f"all {count} devices"
        answer = f"too close to call on {these if count == 1 else others}"
    # branches first, then the fastest
    order = sorted(advice.answers, key=lambda device: (device.device not in good, device.recommended != NO_CLEAR_WINNER))
    rows = [
        (device.device, _use(device), _single(device), _branches(device.exact), _branches(device.stretched)) for device in order[:MOST_ROWS]
    ]
    guessed = sum(not device.calibrated for device in advice.answers)
    unmeasured = f"{guessed} of {count} devices were" if count > 1 else "The device was"
    lines: Brief = [
        f"{advice.model}: {answer}.",
        Grid("", ("device", "use", "best single", "exact split", "stretched split"), rows),
        "Predicted speed-up over the best single processor; 90 % interval in brackets."
        + (f" {unmeasured} not fully measured." if guessed else ""),
    ]
    if len(order) > MOST_ROWS:
        lines.append(f"{len(order) - MOST_ROWS} more devices: --details")
    return [*lines, f"Next: {order[0].command}"]


def _use(answer: "DeviceAdvice") -> str:
    if answer.recommended == NO_CLEAR_WINNER:
        return "too close to call"
    kind, _, name = answer.recommended.partition(":")
    return {"exact": "branch (exact)", "stretched": "branch (retrain)"}.get(kind, f"{name} only")


def _single(answer: "DeviceAdvice") -> str:
    return f"{answer.best_single.processor} {ms(answer.best_single.ms)}"


def _branches(branches: "BranchesAdvice | None") -> str:
    return "none found" if branches is None else ratio(branches.speedup, branches.low, branches.high)


def prediction_brief(prediction: "Prediction", following: str) -> Brief:
    """Return the brief answer of `stretch predict`; `following` is the next command."""
    from stretch.stages.predict import by_latency

    # list the best core set of each processor; the others are details
    best: dict[str, str] = {}
    rows = []
    for name, row in by_latency(prediction.processors):
        if best.setdefault(name.partition("[")[0], name) == name:
            source = SOURCES[row.origin] + (", only if named" if row.optional else "")
            rows.append((name, row.precision, ms(row.latency_ms), f"{row.low_ms:.3g}-{row.high_ms:.3g} ms", source))
    name, first = by_latency(prediction.processors)[0]
    hidden = len(prediction.processors) - len(rows)
    return [
        f"{prediction.model} on {prediction.device}: fastest on the {name} in {first.precision}, {ms(first.latency_ms)} "
        f"(90 % interval {first.low_ms:.3g}-{first.high_ms:.3g} ms).",
        Grid("", ("processor", "precision", "predicted", "90 % interval", "based on"), rows, right=(2,)),
        f"{prediction.macs / 1e6:,.0f} M MACs, {prediction.params / 1e6:.2f} M parameters."
        + (f" {hidden} more core sets: --details" if hidden else ""),
        *([f"Next: {following}"] if following else []),
    ]


def run_brief(answer: RunAnswer, following: str) -> Brief:
    """Return the brief answer of `stretch run`; `following` is the next command."""
    stood = [name for name, place in answer.processors.items() if place.stand_in]
    if answer.check is None or answer.max_error is None:
        first = "Results are not checked: a delegate computes nothing."
    else:
        first = f"Results are correct: {answer.check.tensors} tensors match {answer.check.against} (largest error {answer.max_error:.1e})."
    timings = {t.name: t for t in (answer.sequential, answer.sequential_same_macs, answer.same_net_whole_graph, *answer.others) if t}
    comparisons = {comparison.name: comparison for comparison in answer.comparisons}
    ran = timed_network(answer)
    rows = [(ran, ms(answer.median_ms), ms(answer.p90_ms), "-")]
    for timing in sorted(timings.values(), key=lambda timing: timing.median_ms)[: MOST_ROWS - 2]:
        one = comparisons.get(timing.name)
        ends = (one.low, one.high) if one else (None, None)
        rows.append(
            (timed_variant(timing.name, ran), ms(timing.median_ms), ms(timing.p90_ms), ratio(timing.median_ms / answer.median_ms, *ends))
        )
    lines: Brief = [first, _ratio_text(answer)]
    if stood:
        lines.append(f"CPU cores replace the {' and '.join(stood)}: these times do not apply to {answer.device}" + _planned_text(answer))
    lines.append(Grid("", ("", "median", "p90", f"{ran} is"), rows, right=(1, 2)))
    if answer.throughput is not None:
        rates = answer.throughput.contestants
        lines.append("Throughput: " + ", ".join(f"{rate.name} {rate.per_second:.1f}/s" for rate in rates[:3]) + ".")
    if answer.energy_mj is not None:
        lines.append(f"Energy: {answer.energy_mj:.3g} mJ per inference, by {answer.energy_counter}.")
    lines += [f"Written: {path}" for path in (answer.trace, answer.csv) if path is not None]
    return [*lines, f"Next: {following}", "      --details shows everything"]


def timed_network(answer: RunAnswer) -> str:
    """Return the name of the timed network: branches, or the recommended alternative."""
    # a recommended alternative is one subgraph with the alternative's name
    name = next(iter(answer.subgraphs_alone_ms), BRANCHED)
    alone = len(answer.subgraphs_alone_ms) == 1 and name in BASELINES
    return baseline(f"{name}:{next(iter(answer.processors))}") if alone else BRANCHED


def timed_variant(name: str, ran: str) -> str:
    """Return the display name of another timed network, with its placement.

    Args:
        name: The network's name in JSON.
        ran: Name of the bundle's network, from `timed_network`.
    """
    kind, _, place = name.partition(", ")
    if kind == "same net as one graph":
        kind = "whole_graph" if ran == BRANCHED else ran
    # without a placement the text would end with a comma
    return f"{baseline(kind)}, {place}".rstrip(", ")


def _planned_text(answer: RunAnswer) -> str:
    planned = answer.planned.makespan_ms
    return "." if planned is None else f" (predicted there: {ms(planned)})."


def _ratio_text(answer: RunAnswer) -> str:
    """Return a sentence on whether branching is faster here, by the 95 % interval of the ratio."""
    place = "On this machine" if answer.on is None else f"On {answer.on.host}"
    best = answer.best_sequential
    comparison = next((row for row in answer.comparisons if best is not None and row.name == best.name), None)
    if (ran := timed_network(answer)) != BRANCHED:
        return (
            f"{place} the recommended network ({ran}) takes {ms(answer.median_ms)}; a run without --recommended compares it with branches."
        )
    if best is None or comparison is None:
        return f"{place} an inference takes {ms(answer.median_ms)}; the bundle has no baselines."
    against = timed_variant(best.name, BRANCHED)
    high = comparison.high or comparison.ratio
    state = "slower" if high < 1 else "faster" if comparison.low > 1 else None
    verdict = f"branching is {state or 'too close to call'}"
    return f"{place} {verdict}: {ms(answer.median_ms)}, {against} {ms(best.median_ms)} ({comparison.ratio:.2f}x, 95 % interval {ratio_range(comparison.low, high)})."


def simulation_brief(answer: SimulateAnswer, source: str, following: str) -> Brief:
    """Return the brief answer of `stretch simulate`; `source` is a text on the source of times."""
    place = f" on {answer.device}" if answer.device else ""
    loads = "".join(f", {share(load.share)} of the {load.processor} busy" for load in answer.busy_with_others)
    busy = ", ".join(f"{name} {share(occupation.share)}" for name, occupation in answer.busy.items())
    missed = "" if answer.deadline_ms is None else f" {answer.missed} of {answer.runs} miss the deadline of {answer.deadline_ms:g} ms."
    return [
        f"{answer.model}{place}: median {ms(answer.p50_ms)} over {answer.runs} simulated inferences{loads}.",
        f"p90 {ms(answer.p90_ms)}, p99 {ms(answer.p99_ms)}; {ms(answer.makespan_ms)} without load; {answer.per_second:.1f} per second.{missed}",
        f"Busy: {busy}.",
        f"Confidence: simulated; {source}.",
        f"Next: {following}",
    ]


def front_brief(answer: "FrontAnswer") -> Brief:
    """Return the brief answer of `stretch search`."""
    fastest = min(answer.designs, key=lambda row: row.predicted_ms)
    rows = []
    for row in answer.designs[:MOST_ROWS]:
        agreement = (
            "unchanged" if row.exact else "-" if row.accuracy is None or row.accuracy.agreement is None else share(row.accuracy.agreement)
        )
        rows.append((str(row.name), ms(row.predicted_ms), ratio(row.speedup), share(row.macs_ratio), agreement))
    sequential_ms = answer.sequential_same_macs_ms
    comparison = (
        ""
        if sequential_ms is None
        else f" A sequential network of the same MACs takes {ms(sequential_ms)} on the {answer.sequential_same_macs_processor}."
    )
    hidden = len(answer.designs) - len(rows)
    return [
        f"{answer.model} on {answer.device}: {len(answer.designs)} designs, the fastest {ms(fastest.predicted_ms)}, "
        f"{ratio(fastest.speedup)} the speed of the {answer.best_single_processor} alone.",
        Grid("", ("design", "predicted", "speed-up", "MACs", "agreement"), rows, right=(1, 2, 3, 4)),
        f"Best single processor: {answer.best_single_processor} {answer.best_single_precision}, {ms(answer.best_single_ms)}.{comparison}",
        *([f"{hidden} more designs: --details"] if hidden else []),
        "Next: add --out FOLDER to write designs, then stretch branch MODEL --design FILE",
    ]


def comparison_brief(answer: "CompareAnswer") -> Brief:
    """Return the answer of `stretch compare`: the fastest one, or the largest speed-up where times do not compare."""
    order = sorted(answer.rows, key=lambda row: (row.ms is None, row.ms))
    timed = [row for row in order if row.ms is not None]
    first, gains = "None of the compared networks has a design.", [row for row in timed if row.speedup is not None]
    if len({(row.device, row.source) for row in timed}) == 1:
        first = f"{timed[0].name} is fastest: {ms(timed[0].ms or 0)}, {timed[0].source}."
    elif gains:
        best = max(gains, key=lambda row: row.speedup or 0)
        gain = "gains most" if (best.speedup or 0) > 1 else "loses least"
        first = f"{best.name} {gain}: {ratio(best.speedup or 0)} the speed of its best single processor, {best.source}."
    elif timed:
        first = "Their times do not compare: they are of several devices, or measured and predicted."
    rows = [
        (
            row.name,
            "no design" if row.ms is None else ms(row.ms),
            "-"
            if row.low_ms is None or row.high_ms is None
            else f"p90 {row.high_ms:.3g}"
            if row.kind == "run"
            else f"{row.low_ms:.3g}-{row.high_ms:.3g}",
            "-" if row.speedup is None else ratio(row.speedup),
            "-" if row.macs_ratio is None else share(row.macs_ratio),
            "unchanged" if row.exact else "-" if row.agreement is None else share(row.agreement),
            "-" if row.recommended is None else baseline(row.recommended),
        )
        for row in order[:MOST_ROWS]
    ]
    hidden = len(order) - len(rows)
    titles = ("", "time", "90 % interval", "speed-up", "MACs", "agreement", "recommended")
    known = [column for column in range(len(titles)) if any(row[column] != "-" for row in rows)]
    grid = Grid("", [titles[column] for column in known], [[row[column] for column in known] for row in rows], right=(1, 2, 3, 4))
    return [
        first,
        grid,
        *([f"{hidden} more rows: --details"] if hidden else []),
        "Next: add --details for every column, or --html FILE for a page",
    ]


def explanation_brief(explanation: "Explanation") -> Brief:
    """Return the brief answer of `stretch explain`: the delegate and the time of each processor."""
    rows = []
    for name, place in explanation.processors.items():
        own = [sub for sub in explanation.subgraphs if sub.processor == name]
        names = {sub.name for sub in own}
        placed = sum(op.delegate is not None and op.subgraph in names for op in explanation.ops)
        times = [sub.ms for sub in own if sub.ms is not None]
        cores = f", core {'+'.join(map(str, place.cores))}" if place.cores else ""
        planned = [sub.planned_ms for sub in own if sub.planned_ms is not None]
        rows.append(
            (
                name,
                f"{place.delegate}{cores}",
                str(len(own)),
                str(placed),
                ms(sum(times)) if times else "-",
                ms(sum(planned)) if planned else "-",
            )
        )
    titles = ("processor", "runs on", "subgraphs", "operators", "here" if explanation.device == "this machine" else "there", "planned")
    return [
        f"{explanation.bundle.name} on {explanation.device}: {len(explanation.ops)} operators in {len(explanation.subgraphs)} subgraphs.",
        Grid("", titles, rows, right=(2, 3, 4, 5)),
        f"Next: {command_line('explain', explanation.bundle, '--details')}",
    ]
