"""Two networks planned together, from their names to an answer."""

import time

from predictors.devices import DeviceProfile
from scheduler.progress import Progress, silent
from stretch.capture.inputs import InputShapes
from stretch.planning.config import PlanConfig
from stretch.planning.plan import PlanningProblem
from stretch.planning.together import Goal, TogetherAnswer, candidates, together, together_answer
from stretch.stages.network import read_network


def pair_of(
    models: tuple[str, str],
    device: DeviceProfile,
    request: PlanConfig,
    goal: Goal = "makespan",
    top: int = 3,
    within: float = 1.2,
    *,
    shape: InputShapes | None = None,
    trust_code: bool = False,
    progress: Progress = silent,
) -> TogetherAnswer:
    """Designs of two networks that suit each other.

    Args:
        models: Names of both; the same one twice for two users of one network.
        top: Designs of each set of processors, at most.
        within: How many times the best one's time the others may take.
        shape: Of the first network's input; the usual one if None.
    """
    seconds: dict[str, float] = {}
    graphs = []
    began = time.perf_counter()
    for name, network_shape in zip(models, (shape, None), strict=True):
        progress(f"capturing {name}")
        graphs.append(read_network(name, network_shape, weights="none", trust_code=trust_code).graph)
    seconds["capture"] = round(time.perf_counter() - began, 3)
    began = time.perf_counter()
    candidate_sets = []
    for graph in graphs:
        progress(f"designs of {graph.name}")
        candidate_sets.append(candidates(graph, device, request, top, within))
    seconds["search"] = round(time.perf_counter() - began, 3)
    began = time.perf_counter()
    progress("pairs")
    processors = PlanningProblem.of(graphs[0], device, request).config.processors
    best = together(candidate_sets[0], candidate_sets[1], device, processors, goal, progress=progress)
    seconds["pairs"] = round(time.perf_counter() - began, 3)
    return together_answer(best, seconds)
