"""Plans meet their constraints, compare themselves fairly with controls, and show the paper's pattern."""

import re
from functools import cache

import msgspec
import pytest

from predictors.errors import InfeasibleError, UnknownNameError, UsageError
from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.design.branch_design import BranchDesign, BranchScale, SegmentDesign
from stretch.planning.design.scale import scaled_graph
from stretch.planning.network.segments import split_segments
from stretch.planning.plan import evaluate, plan
from tests.predictors.networks import Net, efficientnet_b5, resnet50, small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE


@pytest.fixture(scope="module")
def plans():
    """A cached function of (network, device, processors) that returns the plan."""
    return cache(lambda make, device, processors=(): plan(make(), specified(device), PlanConfig(processors=processors)))


@pytest.mark.parametrize("make", [resnet50, pytest.param(efficientnet_b5, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("device", "processors"),
    [
        ("pixel6", ("cpu", "gpu")),
        ("mi9", ("cpu", "dsp")),
        *(pytest.param("mi9", names, marks=pytest.mark.slow) for names in (("cpu", "gpu"), ("cpu", "gpu", "dsp"))),
    ],
)
def test_plan_meets_every_constraint_and_is_proved_optimal(plans, make, device, processors):
    result = plans(make, device, processors)
    config, graph, predictor = result.config, result.graph, LatencyPredictor(result.device)
    assert 0.97 <= result.macs_ratio <= 1.03
    assert result.run.macs == scaled_graph(graph, result.design).macs
    assert (result.optimal, result.gap, result.design.n_meet >= 1) == (True, 0, True)
    for row in result.run.segments:
        if len(row.branches) == 1:
            continue
        fastest = min(predictor.predict(row.segment.graph, p, config.precision[p]).ms for p in processors)
        assert max(b.ms for b in row.branches) <= config.beta * fastest * (1 + 1e-9)
        assert max(b.in_ms + b.out_ms for b in row.branches) + row.join_ms <= config.alpha * fastest * (1 + 1e-9)
        assert sum(b.macs for b in row.branches) >= config.segment_macs * row.segment.graph.macs
        for branch in row.branches:
            assert branch.scale.depth >= config.min_depth * row.segment.depth
            assert branch.scale.width >= config.min_width * row.segment.width
            assert branch.scale.width % branch.scale.align == 0 or branch.scale.width == row.segment.width
        assert min(b.ms for b in row.branches) >= config.balance * max(b.ms for b in row.branches)


def test_gpu_keeps_more_width_for_its_depth_than_the_cpu_on_pixel6(plans):
    result = plans(resnet50, "pixel6", ("cpu", "gpu"))
    for row in result.run.segments:
        if len(row.branches) == 2:
            cpu, gpu = row.branches
            assert gpu.scale.depth <= cpu.scale.depth
            assert gpu.scale.width > cpu.scale.width


@pytest.mark.slow
def test_three_processors_beat_two_and_two_beat_one(plans):
    three = plans(resnet50, "mi9", ("cpu", "gpu", "dsp"))
    two = plans(resnet50, "mi9", ("cpu", "dsp"))
    assert three.run.makespan_ms < two.run.makespan_ms < two.best_single.ms
    assert two.recommended == "branched"


def test_design_on_one_processor_is_evaluated_with_a_warning_that_nothing_runs_in_parallel():
    graph = small_resnet()
    parts = tuple(SegmentDesign(s.name, s.start, s.end, (BranchScale("gpu", s.depth, s.width),)) for s in split_segments(graph))
    result = evaluate(graph, specified("pixel6"), BranchDesign(graph.name, "pixel6", parts))
    assert result.design.n_meet == 0
    assert any("nothing runs side by side" in w for w in result.warnings)


@pytest.mark.slow
def test_parameters_in_a_bounded_range_cost_time_and_the_design_is_proved(plans):
    free = plans(resnet50, "pixel6", ("cpu", "gpu"))
    bounded = plan(free.graph, free.device, PlanConfig(params=(0.5, 0.9)))
    assert bounded.run.params / free.graph.params <= 0.9 < free.run.params / free.graph.params
    assert bounded.run.makespan_ms > free.run.makespan_ms
    assert bounded.optimal


def test_network_that_cannot_be_divided_stays_whole_with_a_warning():
    net = Net(1, 3, 32, 32)
    stated = {"kernel": "linear", "in_channels": 768, "out_channels": 64, "groups": 1, "taps": 1, "pixels": 16, "weights": 0}
    net.add("opaque", **stated, variant="linear", shape=(1, 16, 64))
    net.add("opaque", **stated, variant="mean", shape=(1, 16))
    result = plan(net.graph("tokens"), specified("pixel6"), PlanConfig(processors=("cpu", "gpu")))
    assert (result.design.n_meet, result.run.macs) == (0, net.graph("tokens").macs)
    assert "the network stays whole" in result.warnings[0]
    with pytest.raises(InfeasibleError):
        plan(net.graph("tokens"), specified("pixel6"), PlanConfig(processors=("cpu", "gpu"), lossless=True))


@pytest.mark.slow
def test_exact_plan_in_place_of_an_infeasible_stretched_plan_keeps_the_default_precisions():
    result = plan(small_resnet(), specified("mi9"), PlanConfig(processors=("cpu", "gpu")))
    assert result.warnings[0].endswith("as with `lossless` and `precision=cpu=int8,gpu=fp16`")
    assert (result.exact, result.config.precision) == (True, {"cpu": "int8", "gpu": "fp16"})


REWRITTEN = ("gpu:silu=relu6", "cpu:squeeze_excite=none")


@pytest.mark.slow
def test_requested_rewrites_apply_only_to_scaled_branches_and_the_plan_reports_them():
    graph = efficientnet_b5()
    plan_config = PlanConfig(processors=("cpu", "gpu"), rewrite=REWRITTEN)
    result = plan(graph, specified("mi9"), plan_config)
    branched = [part for part in result.design.segments if len(part.branches) > 1]
    assert {b.rewrites for part in branched for b in part.branches if b.processor == "gpu"} == {("silu=relu6",)}
    assert {b.rewrites for part in branched for b in part.branches if b.processor == "cpu"} == {("squeeze_excite=none",)}
    assert all(not b.rewrites for part in result.design.segments if len(part.branches) == 1 for b in part.branches)
    (message,) = [str(warning) for warning in result.warnings if "scaled branches are rewritten" in str(warning)]
    assert "silu=relu6 on gpu" in message
    scaled = scaled_graph(graph, result.design)
    assert scaled.macs == result.run.macs
    gpu = [op.kind for op in scaled.ops if op.tags.get("processor") == "gpu" and op.tags["segment"] in {part.name for part in branched}]
    assert "relu6" in gpu
    assert "silu" not in gpu


@pytest.mark.parametrize(("item", "reason"), [("gpu:silu=relu6", "$"), ("gpu:resolution=half", "ends with pooling over the whole image$")])
def test_requested_rewrite_that_changes_no_branch_is_named_in_a_warning(item, reason):
    result = plan(small_resnet(), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), rewrite=(item,), lossless=True))
    [warning] = [text for text in map(str, result.warnings) if item in text]
    assert re.search(f"^no branch of this design changes with `{item}`(; .*)?{reason}", warning)


@pytest.mark.parametrize(
    ("request_", "rewrites"),
    [
        ((), ("silu=relu6",)),
        (("none",), ()),
        (("cpu:silu=relu",), ()),
        (("profile", "gpu:resolution=half"), ("silu=relu6", "resolution=half")),
    ],
)
def test_rewrites_of_the_profile_apply_unless_the_request_states_its_own(request_, rewrites):
    """The profile rewrites SiLU to ReLU6 on its GPU."""
    device = specified("mi9")
    gpu = msgspec.structs.replace(device.processors["gpu"], rewrites=("silu=relu6",))
    with_rewrites = msgspec.structs.replace(device, processors={**device.processors, "gpu": gpu})
    assert PlanConfig(processors=("cpu", "gpu"), rewrite=request_).rewrites_on(("cpu", "gpu"), with_rewrites).get("gpu", ()) == rewrites


PIXEL6 = specified("pixel6")
#: Each stage of this network takes too little time for a transfer; both together take enough.
GRAPH = small_resnet()
SHORT = {"alpha": 0.4}


@cache
def planned(**changes):
    return plan(GRAPH, PIXEL6, PlanConfig(**(SHORT | changes)))


MERGED = {"stem": ["stem"], "s1_to_s2": ["s1", "s2"], "head": ["head"]}


def stages_of(result):
    return {row["name"]: row["stages"] for row in result.to_json()["segments"]}


def test_stages_merge_automatically_if_none_can_branch_alone_but_a_kept_stage_does_not_merge():
    result = planned()
    assert (stages_of(result), result.design.n_meet, result.optimal) == (MERGED, 1, True)
    assert 0.97 <= result.macs_ratio <= 1.03
    warning = next(w for w in result.warnings if "merged" in w)
    assert "s1 to s2" in warning
    assert "accuracy" in warning
    with pytest.raises(InfeasibleError):
        planned(keep=("s1",))


@pytest.mark.representatives(1)
@pytest.mark.parametrize("request_", [{"strategy": "grid"}, {"join": "concat"}])
def test_other_searches_merge_the_same_stages_as_the_exact_search(request_):
    loose = {"alpha": 0.65, "macs": (0.9, 1.2)}
    result = planned(**request_, **loose)
    assert stages_of(result) == stages_of(planned(**loose)) == MERGED
    assert result.design.n_meet == 1


REFUSED = [
    ("pixel6", {"meet": ("nowhere",)}, UnknownNameError, "`nowhere`"),
    ("pixel6", SHORT | {"keep": ("s9",)}, UnknownNameError, "unknown stage to keep `s9`"),
    ("pixel6", SHORT | {"merge": "never"}, InfeasibleError, "let stages merge with `merge=auto`"),
    ("pixel6", SHORT | {"n_meet": 2}, InfeasibleError, "the nearest value with a design is `n_meet=1`, or split the network as it is with"),
    ("pixel6", {"join": "concat", "strategy": "grid"}, UsageError, "without `strategy` and `params`"),
    ("mi9", {"processors": ("cpu", "gpu"), "rewrite": ("silu=relu6",)}, UsageError, "names no processor"),
    ("mi9", {"processors": ("cpu", "gpu"), "rewrite": ("dsp:silu=relu6",)}, UsageError, "`dsp`, which is not among the processors"),
    ("mi9", {"processors": ("cpu", "gpu"), "rewrite": ("gpu:silu=no",)}, UnknownNameError, "unknown rewrite `silu=no`"),
    ("pixel6", LOOSE | {"strategy": "grid", "params": (0.9, 1.1)}, UsageError, "exact strategy only"),
    ("pixel6", LOOSE | {"join": "concat", "macs": (0.99999, 1.00001)}, InfeasibleError, "use `join=project`"),
    ("pixel6", {"kinds": ("stretch",)}, InfeasibleError, "alpha=0.2"),
    # a requested rule is never dropped
    *(("pixel6", asked, InfeasibleError, "") for asked in ({"alpha": 0.19}, {"macs": (0.98, 1.02), "beta": 0.1})),
]


@pytest.mark.parametrize(("device", "request_", "error", "message"), REFUSED)
def test_infeasible_request_is_refused_with_a_remedy(device, request_, error, message):
    with pytest.raises(error) as caught:
        plan(GRAPH, specified(device), PlanConfig(**request_))
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_grid_search_that_misses_a_narrow_range_proposes_the_exact_search():
    with pytest.raises(InfeasibleError) as caught:
        plan(resnet50(), PIXEL6, PlanConfig(strategy="grid", macs=(0.9999, 1.0001)))
    assert "use `strategy=exact`" in caught.value.hint


OBJECTIVES = ("latency", "energy", "0.5*latency+0.5*energy")


def best_in(objective, **changes):
    return plan(small_resnet(96), specified("mi9"), PlanConfig(processors=("cpu", "gpu"), objective=objective, **(LOOSE | changes)))


@pytest.mark.slow
def test_design_of_each_objective_has_the_best_value_in_it():
    results = {objective: best_in(objective) for objective in OBJECTIVES}
    latency = {objective: result.run.makespan_ms for objective, result in results.items()}
    energy = {objective: result.energy_mj for objective, result in results.items()}
    assert (min(latency, key=latency.get), min(energy.values())) == ("latency", pytest.approx(energy["energy"]))
    for objective, result in results.items():
        answer = result.objective
        assert (answer.requested, answer.strategy, result.optimal) == (objective, "exact", True)
    assert results["energy"].objective.value == pytest.approx(energy["energy"])
    mixed = results["0.5*latency+0.5*energy"]
    assert mixed.objective.value == pytest.approx(0.5 * mixed.run.makespan_ms + 0.5 * mixed.energy_mj)


def test_least_energy_within_a_latency_budget_is_higher_than_without_a_budget():
    free, fastest = best_in("energy"), best_in("latency")
    budget = (free.run.makespan_ms + fastest.run.makespan_ms) / 2
    kept = best_in("energy", latency_budget=budget)
    assert kept.run.makespan_ms <= budget
    assert free.energy_mj <= kept.energy_mj <= fastest.energy_mj + 1e-9
    with pytest.raises(InfeasibleError, match="takes"):
        best_in("energy", latency_budget=0.5 * fastest.run.makespan_ms)
