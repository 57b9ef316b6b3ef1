from dataclasses import replace
from itertools import pairwise
from math import exp, inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.adapt.policy import AdaptationRules, Alternative, InferenceMeasured, PlannedWork, Policy, ProbeMeasured
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import Network, alternative_of
from scheduler.simulate.scene import Scene
from tests.scheduler.runtime.plans import PROCESSORS
from tests.scheduler.simulate.test_clock import chains

BOTH = Alternative("both", (PlannedWork("c", "cpu", "cpu", 10.0, 0.0, ()), PlannedWork("g", "gpu", "gpu", 10.0, 1.0, ())))
GPU = Alternative("gpu", (PlannedWork("g", "gpu", "gpu", 19.0, 1.0, ()),))
CPU = Alternative("cpu", (PlannedWork("c", "cpu", "cpu", 25.0, 0.0, ()),))
PLANS = (BOTH, GPU, CPU)


def play(factors, plans=PLANS, rules=None, duration=1):
    """Plan of each inference, and the policy's decisions; a probe ends `duration` inferences later."""
    policy = Policy(plans, rules)
    state, ran, decided, probes = policy.begin(), [], [], []
    for number, slow in enumerate(factors):
        expected = policy.alternatives[state.current].computing_ms
        ran.append(state.current)
        events = [InferenceMeasured(number, state.current, expected, {name: ms * slow.get(name, 1.0) for name, ms in expected.items()})]
        events += [
            ProbeMeasured(number, p.processor, p.expected_ms, p.expected_ms * slow.get(p.processor, 1)) for at, p in probes if at == number
        ]
        for event in events:
            state, decision = policy.after(state, event)
            decided += [decision] if decision else []
            probes += [(number + duration, decision.probe)] if decision and decision.probe else []
    return ran, decided


def busy(name, factor, count):
    return [{name: factor}] * count


@given(st.floats(3, 100))
def test_contended_processor_is_left_within_six_inferences_and_the_reason_names_it(factor):
    ran, decided = play([{}] * 10 + busy("gpu", factor, 7))
    assert (ran[-1], decided[0].kind, decided[0].reason[:3]) == ("cpu", "move", "gpu")
    assert 10 < decided[0].inference < 17


def test_processor_that_is_free_again_is_used_again():
    ran, decided = play([{}] * 5 + busy("gpu", 10.0, 30) + [{}] * 80)
    assert (ran[-1], decided[-1].kind) == ("both", "return")
    assert decided[-1].inference - 35 <= 2 * 16 + 1


@pytest.mark.slow
@given(st.integers(100, 400), st.integers(1, 9))
def test_probes_of_a_processor_that_stays_contended_become_rare_and_slow_no_inference(count, duration):
    ran, decided = play(busy("gpu", 10.0, count), duration=duration)
    probes = [item for item in decided if item.kind == "probe"]
    assert 1 <= len(probes) <= 4 + count // 64
    assert (set(ran[10:]), {probe.probe.processor for probe in probes}) == ({"cpu"}, {"gpu"})
    # one probe at a time
    assert all(one.kind != other.kind for one, other in pairwise(decided[1:]))


def contended_gpu():
    """A policy that left a contended GPU and probes it, its state, and the probe."""
    policy = Policy(PLANS)
    state = policy.begin()
    for number in range(60):
        expected = policy.alternatives[state.current].computing_ms
        measured = {name: 10 * ms if name == "gpu" else ms for name, ms in expected.items()}
        state, decision = policy.after(state, InferenceMeasured(number, state.current, expected, measured))
        if decision is not None and decision.probe is not None:
            return policy, state, decision.probe
    raise AssertionError


@pytest.mark.parametrize("ms", [nan, inf, 0.0, -1.0])
def test_failed_probe_leaves_its_processor_contended_and_is_repeated_later(ms):
    policy, state, probe = contended_gpu()
    after, decision = policy.after(state, ProbeMeasured(60, "gpu", probe.expected_ms, ms))
    gpu = after.observed["gpu"]
    assert (decision.kind, after.probed, gpu.contended, gpu.mean) == ("stay away", None, True, state.observed["gpu"].mean)
    assert gpu.wait > policy.rules.probe_after


@given(st.lists(st.dictionaries(st.sampled_from(["cpu", "gpu"]), st.sampled_from([1.0, 1.3, 2.0, 8.0])), max_size=120))
def test_every_move_goes_to_the_fastest_plan_and_saves_at_least_the_gain(factors):
    rules = AdaptationRules()
    for item in play(factors, rules=rules)[1]:
        expected = {plan.name: plan.expected_ms(item.factors) for plan in PLANS}
        if item.kind == "move":
            assert expected[item.after] == min(expected.values()) < (1 - rules.gain) * expected[item.before]
        if item.kind in ("return", "stay away"):
            assert expected[item.after] <= min(expected.values()) / (1 - rules.gain) + 1e-9


def test_inference_that_began_before_the_last_decision_causes_no_decision():
    policy = Policy(PLANS)
    state = replace(policy.begin(), current="cpu")
    for number in range(9):
        state, decision = policy.after(state, InferenceMeasured(number, "both", BOTH.computing_ms, {"cpu": 10.0, "gpu": 90.0}))
        assert decision is None
    assert state.observed["gpu"].contended


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        *(
            ({key: value}, key)
            for key, value in [("contended", 1.1), ("contended", nan), ("free", 0.5), ("weight", 0.0), ("weight", nan), ("gain", 1.0)]
        ),
        *((rules, "numbers of inferences") for rules in ({"inferences": 0}, {"probe_after": 0}, {"probe_after": 9, "probe_most": 8})),
        ({"prefer": "speed"}, "no objective"),
        *((rules, "deadline_ms belongs") for rules in ({"prefer": "deadline"}, {"deadline_ms": 5.0})),
        *(({"prefer": "deadline", "deadline_ms": ms}, "positive and finite") for ms in (0.0, nan)),
    ],
)
def test_rules_that_contradict_each_other_are_refused(rules, message):
    with pytest.raises(UsageError, match=message):
        AdaptationRules(**rules)


#: The GPU takes far less power, and both processors together are the fastest.
POWERED = tuple(replace(plan, watts={"cpu": 4.0, "gpu": 1.0}) for plan in PLANS)
ENERGY, WITHIN = AdaptationRules(prefer="energy"), AdaptationRules(prefer="deadline", deadline_ms=22.0)
factors = st.fixed_dictionaries({name: st.floats(1, 12) for name in ("cpu", "gpu")})


@given(factors, st.sampled_from([ENERGY, WITHIN, AdaptationRules(prefer="deadline", deadline_ms=60.0)]))
def test_chosen_plan_keeps_the_deadline_if_possible_and_takes_the_least_energy_up_to_the_gain(slow, rules):
    policy = Policy(POWERED, rules)
    state = policy.begin()
    for number in range(40):
        expected = policy.alternatives[state.current].computing_ms
        measured = {name: ms * slow[name] for name, ms in expected.items()}
        state, _ = policy.after(state, InferenceMeasured(number, state.current, expected, measured))
        slowdowns = {name: exp(item.mean) for name, item in state.observed.items() if item.contended}
        keeping = [item for item in POWERED if item.expected_ms(slowdowns) <= (rules.deadline_ms or inf)]
        if keeping:
            assert (present := policy.alternatives[state.current]) in keeping
            least = min(item.expected_mj(slowdowns) for item in keeping)
            assert present.expected_mj(slowdowns) * (1 - rules.gain) <= least + 1e-9


def test_energy_needs_the_power_of_every_processor_that_computes():
    with pytest.raises(UsageError, match="power of gpu is unknown"):
        Policy((replace(BOTH, watts={"cpu": 1.0}),), ENERGY)


@given(chains, st.dictionaries(st.sampled_from(PROCESSORS), st.floats(0.2, 20)))
def test_expected_time_of_a_chain_equals_the_simulation_with_slower_processors(network, factors):
    plan, places, times = network
    slower = {
        name: type(time)(
            time.processor,
            tuple((doing, ms * (factors.get(time.processor, 1.0) if doing in ("subgraph", "join") else 1.0)) for doing, ms in time.parts),
        )
        for name, time in times.items()
    }
    (simulated,) = Clock(Network("n", plan, places, slower), Scene()).run().latencies_ms
    assert abs(alternative_of(Network("n", plan, places, times)).expected_ms(factors) - simulated) < 1e-6
