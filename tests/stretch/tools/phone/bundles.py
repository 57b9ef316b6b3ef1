"""Bundles for a phone, and what it would say of them."""

from tests.scheduler.bundles import Builder, edit
from tests.scheduler.tools.runner.built import exported
from tests.stretch.tools.phone.adb import shell
from tests.stretch.tools.phone.samples import profile, spoken, xnnpack

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


def long(path):
    """Five segments of three branches each, between a stem and a head: seventeen subgraphs of seven segments."""
    b = Builder(path)
    b.conv("stem", "stem", "cpu", "x", "t0", 8)
    for number in range(1, 6):
        for turn, processor in enumerate(("cpu", "gpu", "dsp")):
            b.conv(f"s{number}.{processor}", f"s{number}", processor, f"t{number - 1}", f"s{number}.{processor}.y", 4 * number + 8 * turn)
        b.join(f"s{number}.join", f"s{number}", "concat", [f"s{number}.{p}.y" for p in ("cpu", "gpu", "dsp")], f"t{number}")
    b.head("head", "head", "cpu", "t5", "y", 5)
    return b.write("y")


def made(folder, make=long, precision=None):
    def on_mi9(path):
        edit(make(path), lambda data: data.update(device="mi9"))
        return path

    return exported(folder, on_mi9, precision)


def command(signature, flags, threads, *, profiled=False, runs=50, warmup=5, mask=()):
    words = [*mask, "{folder}/benchmark_model", "--graph={folder}/model.tflite", f"--signature_to_run_for={signature}"]
    words += [f"--num_threads={threads}", f"--num_runs={runs}", f"--warmup_runs={warmup}", "--min_secs=0", "--warmup_min_secs=0", *flags]
    if profiled:
        words += ["--enable_op_profiling=true", "--op_profiling_output_mode=csv", "--op_profiling_output_file={folder}/profile.csv"]
    return shell(words)


def ms_of(macs, speed):
    """Time of a signature: its work at a speed, multiply-accumulates per microsecond, and a launch."""
    return 0.02 + macs / speed / 1e3


def timed(sub, flags, threads, speed, *, delegate=None, rows=None, **how):
    """All calls of one signature on one processor that went well."""
    ms = ms_of(sub.macs, speed)
    if rows is None:
        kinds = [("conv", ms - 0.02)] if sub.name != "head" else [("pool", 0.01), ("linear", ms - 0.02)]
        rows = xnnpack(kinds)
    said = spoken(ms, delegate=delegate)
    return [
        {"call": command(sub.name, flags, threads, **how), "out": said},
        {"call": command(sub.name, flags, threads, profiled=True, **how), "out": said},
        {"call": ["-s", SERIAL, "pull", "{folder}/profile.csv", "{here}"], "gives": profile(rows, subgraph=(3, sub.name))},
    ]
