"""Bundles for a phone, and output of LiteRT's `benchmark_model` in the format of its sources."""

from tests.scheduler.bundles import edit, two_branches
from tests.scheduler.tools.runner.built import exported
from tests.stretch.tools.phone.adb import shell

#: Replaces commas in names; types keep their commas.
TAB = "\t"

HEADER = "node type, first, avg_ms, %, cdf%, mem KB, times called, name"


def spoken(ms, std_ms=0.05, runs=50, delegate=None, partly=False):
    """Return the log of `benchmark_model` for one signature."""
    us, std = ms * 1e3, std_ms * 1e3
    applied = ""
    if delegate is not None:
        extent = "partially executed by the delegate w/ 2 delegate kernels" if partly else "completely executed by the delegate"
        applied = f"INFO: Explicitly applied {delegate} delegate, and the model graph will be {extent}.\n"
    return (
        "INFO: STARTING!\nINFO: Log parameter values verbosely: [0]\nINFO: Min num runs: [50]\nINFO: Min runs duration (seconds): [0]\n"
        f"INFO: Loaded model model.tflite\n{applied}INFO: The input model file size (MB): 0.89589\n"
        "INFO: Initialized session in 3.1ms.\nINFO: Running benchmark for at least 5 iterations and at least 0 seconds but terminate if exceeding 150 seconds.\n"
        f"INFO: count=5 first={us * 3:.0f} curr={us:.0f} min={us * 0.9:.0f} max={us * 3:.0f} avg={us * 1.4:.6g} std={std * 9:.4g}\n\n"
        f"INFO: Running benchmark for at least {runs} iterations and at least 0 seconds but terminate if exceeding 150 seconds.\n"
        f"INFO: count={runs} first={us:.0f} curr={us:.0f} min={us * 0.9:.0f} max={us * 1.2:.0f} avg={us:.6g} std={std:.4g} p5={us:.0f} median={us:.0f} p95={us:.0f}\n\n"
        f"INFO: Inference timings in us: Init: 3100, First inference: {us * 3:.0f}, Warmup (avg): {us * 1.4:.6g}, Inference (avg): {us:.6g}\n"
        "INFO: Note: as the benchmark tool itself affects memory footprint, the following is only APPROXIMATE to the actual memory footprint of the model at runtime. Take the information at your discretion.\n"
        "INFO: Memory footprint delta from the start of the tool (MB): init=3.2 overall=4.1\n"
    )


def profile(rows, subgraph=None, inside=()):
    """Return the operators' times as CSV.

    Args:
        rows: Type, ms and name of each operator.
        subgraph: Number and name of the signature's subgraph if it is not the first: its block follows the block of
            the first subgraph, which lists a delegate's operators.
        inside: Operators that are listed again under the delegate's operator.
    """
    first = [] if subgraph and not any(name.startswith("Delegate/") for _, _, name in rows) else rows
    text = "Profiling Info for Benchmark Initialization:\n" + block([("ModifyGraphWithDelegate", 1.5, "ModifyGraphWithDelegate/0")])
    text += "\nOperator-wise Profiling Info for Regular Benchmark Runs:\n"
    text += ("Primary graph (name: stem) profile:\n" if subgraph else "") + block(first)
    if subgraph:
        text += f"Subgraph (index: {subgraph[0]}, name: {subgraph[1]}) profile:\n" + block([] if first else rows)
    if inside:
        text += "Delegate internal: \n" + block([("DelegateOpInvoke", ms, name) for _, ms, name in inside])
    return text


def block(rows):
    """Return the blocks of one subgraph: operators in run order, by time, and a summary."""
    total = sum(ms for _, ms, _ in rows) or 1.0
    lines = [
        f"{kind}, {ms:.6g}, {ms:.6g}, {100 * ms / total:.6g}%, {100 * ms / total:.6g}%, 0, 1, {name.replace(',', TAB)}"
        for kind, ms, name in rows
    ]
    listed = "\n".join(lines) + "\n" if lines else ""
    title = "============================== {} =============================="
    return (
        f"{title.format('Run Order')}\n{HEADER}\n{listed}\n{title.format('Top by Computation Time')}\n{HEADER}\n{listed}\n"
        f"Number of nodes executed: {len(rows)}\n{title.format('Summary by node type')}\n[Node type], count, avg_ms, avg %, cdf %, mem KB, times called\n\n"
        "Timings (microseconds): count=50 curr=1 min=1 max=1 avg=1 std=0\nMemory (bytes): count=0\n1 nodes observed\n\n"
    )


def xnnpack(kernels):
    """Return XNNPACK's type, ms and name for kernels given as kind and ms."""
    types = {
        "conv": "Convolution (NHWC, F32) IGEMM",
        "conv1x1": "Convolution (NHWC, F32) GEMM",
        "depthwise": "Convolution (NHWC, F32) DWConv",
        "linear": "Fully Connected (NC, F32) GEMM",
        "elementwise": "Add (ND, F32)",
        "pool": "Global Average Pooling (NWC, F32)",
    }
    lines = [types[kind] for kind, _ in kernels]
    return [(word, ms, f"Delegate/{word}:{number}") for number, (word, (_, ms)) in enumerate(zip(lines, kernels, strict=True))]


SERIAL = "R5CT"

START = [
    {"call": ["devices"], "out": f"List of devices attached\n{SERIAL}\tdevice\n\n"},
    {"call": shell(["getprop", "ro.product.model"]), "out": "Pixel 6\n"},
    {"call": shell(["getprop", "ro.build.version.release"]), "out": "16\n"},
    {"call": shell(["mkdir", "{folder}"])},
    {"call": ["-s", SERIAL, "push", "{here}", "{folder}/model.tflite"], "out": "1 file pushed\n"},
]
BENCHMARK = [
    {"call": ["-s", SERIAL, "push", "{here}", "{folder}/benchmark_model"], "takes": "benchmark", "out": "1 file pushed\n"},
    {"call": shell(["chmod", "755", "{folder}/benchmark_model"])},
]
END = [{"call": shell(["rm", "-rf", "{folder}"])}]


def made(folder):
    def on_mi9(path):
        edit(two_branches(path, 1, ("cpu", "gpu", "dsp")), lambda data: data.update(device="mi9"))
        return path

    return exported(folder, on_mi9)


def command(signature, flags, threads, *, profiled=False, runs=50, warmup=5, mask=()):
    argv = [*mask, "{folder}/benchmark_model", "--graph={folder}/model.tflite", f"--signature_to_run_for={signature}"]
    argv += [f"--num_threads={threads}", f"--num_runs={runs}", f"--warmup_runs={warmup}", "--min_secs=0", "--warmup_min_secs=0", *flags]
    if profiled:
        argv += ["--enable_op_profiling=true", "--op_profiling_output_mode=csv", "--op_profiling_output_file={folder}/profile.csv"]
    return shell(argv)


def ms_of(macs, speed):
    """Return the time of a signature in ms at a speed in multiply-accumulates per microsecond, with a launch."""
    return 0.02 + macs / speed / 1e3


def timed(sub, flags, threads, speed, *, delegate=None, rows=None, **options):
    """Return all calls of a successful measurement of one signature on one processor."""
    ms = ms_of(sub.macs, speed)
    if rows is None:
        kinds = [("conv", ms - 0.02)] if sub.name != "head" else [("pool", 0.01), ("linear", ms - 0.02)]
        rows = xnnpack(kinds)
    output = spoken(ms, delegate=delegate)
    return [
        {"call": command(sub.name, flags, threads, **options), "out": output},
        {"call": command(sub.name, flags, threads, profiled=True, **options), "out": output},
        {"call": ["-s", SERIAL, "pull", "{folder}/profile.csv", "{here}"], "gives": profile(rows, subgraph=(3, sub.name))},
    ]
