"""Plans, placements and times for the tests of the state machine and of the simulation, drawn by hypothesis or written by hand."""

from hypothesis import strategies as st

from scheduler.bundle.manifest import JoinEntry
from scheduler.placement.place import Placement
from scheduler.runtime.plan import PlannedSubgraph, build_plan
from scheduler.simulate.networks import StepTime

CPU = Placement("cpu", "cpu", (0,), "cpu0", "inline", False, "")
GPU = Placement("gpu", "gpu", (), "gpu", "async", False, "")
DSP = Placement("dsp", "dsp", (1,), "cpu1", "blocking", False, "")
ALL = {"cpu": CPU, "gpu": GPU, "dsp": DSP}
PROCESSORS = tuple(ALL)


def blocking(processor, core):
    return Placement(processor, "cpu", (core,), f"cpu{core}", "blocking", False, "")


def planned(subgraphs, joins=(), inputs=("x",), outputs=("y",), placements=ALL):
    """Plan and placements from subgraphs (name, processor, inputs, outputs) and joins (name, inputs, output)."""

    def several(names):
        return (names,) if isinstance(names, str) else tuple(names)

    steps = [PlannedSubgraph(n, n.split(".")[0], f"{n}.onnx", p, several(i), several(o)) for n, p, i, o in subgraphs]
    plan = build_plan(inputs, outputs, steps, [JoinEntry(n, n.split(".")[0], "concat", tuple(i), o, "cpu") for n, i, o in joins])
    return plan, {name: placements[s.processor] for name, s in plan.subgraphs.items()}


def three_processors():
    """Stem, a branch on each processor, join, head."""
    branches = [(f"s1.{name}", name, "t", output) for name, output in zip(ALL, "abc", strict=True)]
    return planned([("stem", "cpu", "x", "t"), *branches, ("head", "cpu", "u", "y")], [("s1.join", ("a", "b", "c"), "u")])


@st.composite
def plans(draw):
    """Random plans and placements: subgraphs and joins that read one to three tensors of earlier steps."""
    inputs = [f"x{i}" for i in range(draw(st.integers(1, 3)))]
    available, subgraphs, joins = list(inputs), [], []
    for s in range(draw(st.integers(1, 8))):
        if len(available) > 1 and draw(st.integers(0, 3)) == 0:
            reads = draw(st.lists(st.sampled_from(available), min_size=2, max_size=3, unique=True))
            joins.append((f"s{s}.join", tuple(reads), f"j{s}"))
            available.append(f"j{s}")
        else:
            reads = draw(st.lists(st.sampled_from(available), min_size=1, max_size=3, unique=True))
            writes = [f"t{s}.{i}" for i in range(draw(st.integers(1, 2)))]
            processor = draw(st.sampled_from(sorted(ALL)))
            subgraphs.append((f"s{s}", processor, tuple(reads), tuple(writes)))
            available += writes
    if not subgraphs:
        subgraphs.append(("last", "cpu", (available[-1],), ("last.y",)))
        available.append("last.y")
    outputs = draw(st.lists(st.sampled_from(available), min_size=1, max_size=3, unique=True))
    placements = draw(placements_of())
    return planned(draw(st.permutations(subgraphs)), joins, tuple(inputs), tuple(outputs), placements)


@st.composite
def placements_of(draw):
    """Placements of the three processors: each asynchronous, on a thread, or on the calling thread."""
    return {
        "cpu": CPU,
        "gpu": draw(st.sampled_from([GPU, blocking("gpu", 1), CPU])),
        "dsp": draw(st.sampled_from([DSP, blocking("dsp", 2), CPU])),
    }


def chain(segments):
    """Consecutive segments with branches and a join each, so that every queue has a fixed order; with times of the steps."""
    subgraphs, joins, times, arriving = [], [], {}, "x"
    for number, branches in enumerate(segments):
        current = []
        for processor, (transfer_in, computing, transfer_out) in branches.items():
            name = f"s{number}.{processor}"
            subgraphs.append((name, processor, arriving, f"{name}.y"))
            current.append(f"{name}.y")
            times[name] = StepTime(processor, (("in", transfer_in), ("subgraph", computing), ("out", transfer_out)))
        joins.append((f"s{number}.join", current, f"y{number}"))
        times[f"s{number}.join"] = StepTime("cpu", (("join", 0.25),))
        arriving = f"y{number}"
    return *planned(subgraphs, joins, outputs=(arriving,)), times


def single(processor, ms):
    return *planned([("s", processor, "x", "y")]), {"s": StepTime(processor, (("subgraph", ms),))}
