"""Controls can be built, keep the same rules, and are as fast as possible."""

from itertools import product

from predictors.predictor import LatencyPredictor
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.design.scale import legal_widths
from stretch.planning.network.segments import split_segments
from stretch.planning.result import ranked_singles, sequential_same_macs, variants
from stretch.planning.search.space import Rules, Totals
from tests.predictors.networks import resnet50, small_resnet
from tests.predictors.specified import specified


def setup(device, processors=(), **changes):
    profile = specified(device)
    config = PlanConfig(processors=processors, **changes).resolve(profile)
    return config, Costs(LatencyPredictor(profile), config.precision)


def test_single_controls_cover_core_sets_and_no_narrower_precision_than_planned():
    config, costs = setup("pixel6")
    result = variants(costs, config.processors)
    assert ("cpu[1large]", "fp32") in result
    assert {precision for _, precision in result} == {"fp32", "fp16"}
    config, costs = setup("mi9", ("cpu", "gpu"))
    assert ("cpu", "int8") in variants(costs, config.processors)
    assert not any(name.startswith("dsp") for name, _ in variants(costs, config.processors))


def test_best_single_is_the_fastest_of_all_variants():
    graph = resnet50()
    config, costs = setup("host")
    best = ranked_singles(graph, costs, config.processors)[0]
    assert best.processor == "cpu[2cores]"
    assert best.ms == min(costs.predictor.predict(graph, v, p).ms for v, p in variants(costs, config.processors))


def test_sequential_control_equals_brute_force_on_a_tiny_network():
    graph = small_resnet(blocks=(2, 2))
    config, costs = setup("pixel6", min_width=0.9)
    segments = split_segments(graph)
    rules = Rules.of(config)
    totals = Totals(round(0.95 * graph.macs), round(1.05 * graph.macs), 0)
    result = sequential_same_macs(graph, segments, costs, ranked_singles(graph, costs, config.processors), rules, totals)
    processor = result.single.processor
    stem, s1, s2, head = segments
    widths = [legal_widths(s, costs.align(processor), 0.9, 1.5) for s in (s1, s2)]
    best = float("inf")
    single_costs = Costs(costs.predictor, {**costs.precision, processor: result.single.precision})
    moving = single_costs.transfer("cpu", processor, 3 * 32 * 32) + single_costs.transfer(processor, "cpu", 10)
    for w1, w2, d1, d2 in product(*widths, rules.depths(s1), rules.depths(s2)):
        parts = [
            single_costs.branch(stem, processor, 1, stem.width),
            single_costs.branch(s1, processor, d1, w1),
            single_costs.branch(s2, processor, d2, w2, w1),
            single_costs.branch(head, processor, 1, head.width, w2),
        ]
        enough = all(c.macs >= 0.9 * s.graph.macs for s, c in zip((s1, s2), parts[1:3], strict=True))
        if enough and totals.low <= sum(c.macs for c in parts) <= totals.high:
            best = min(best, sum(c.ms for c in parts) + moving)
    # The control may try fewer widths but never beats brute force.
    assert best <= result.single.ms + 1e-9
    assert result.single.ms <= best * 1.02
