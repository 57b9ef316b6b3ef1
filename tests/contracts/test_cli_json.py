"""Keys of the JSON that verbs print: other programs read these keys, so renaming one needs a new schema number."""

import json
import shutil

import pytest

from stretch.cli import VERBS
from stretch.cli.output import SCHEMA
from tests.predictors.fitting.worlds import write_world
from tests.stretch.cli.commands import LOOSE, call, perform
from tests.stretch.pictures import folder_of
from tests.stretch.train.recipes import network

pytestmark = pytest.mark.torch

#: Keys by verb and request. ``key.`` has the keys of a nested object, ``key[]`` of a list's elements, ``key{}`` of a mapping's values.
KEYS = {
    "web": {
        "": "address bundles profile mean_error warnings",
        "bundles[]": "bundle browser threads providers lacks median_ms p90_ms rounds macs_ratio ratios differences right overlap_ms handover_ms predicted_ms sentences",
        "bundles[].ratios[]": "over ratio low high",
    },
    "advise": {
        "": "model input macs params source precision answers warnings",
        "answers[]": "device name calibrated advice reason best_single optional exact stretched exact_at_most recommended command",
    },
    "branch": {
        "": "model device calibrated macs params exact halo halo_ms repeated macs_ratio params_ratio n_meet segments sides design operator_split_design predicted objective recommended written withheld weights bundle checks warnings agreement refinement",
        "segments[]": "name start end shape depth kind halo halo_ms repeated branches",
        "segments[].branches[]": "processor depth width entry join rows paths channels macs predicted_ms",
        "predicted.": "makespan_ms best_single_ms best_single_processor speedup sequential_same_macs_ms whole_graph_ms operator_split_ms ideal_split_ms ideal_fraction efficiency optimal gap source expected_ms makespan_low_ms makespan_high_ms probability_faster measure_next links changes crossover energy_mj best_single_energy_mj sequential_same_macs_energy_mj energy far_ahead crossover_divided",
        "objective.": "asked value unit strategy",
        "weights.": "source",
    },
    "search": {
        "": "model device pareto objective within optimal gap designs best_single_ms sequential_same_macs_ms evaluated space_log10 seconds sensitivity source warnings",
        "designs[]": "name predicted_ms speedup macs_ratio n_meet exact branches accuracy energy_mj peak_bytes value optimal design file",
    },
    "compare": {
        "": "rows warnings",
        "rows[]": "name kind source model device processors ms low_ms high_ms best_single_ms speedup sequential_same_macs_ms speedup_over_sequential macs macs_ratio params n_meet exact agreement probability recommended reason",
    },
    "train": {"": "run checkpoint metrics", "metrics.": "accuracy best_accuracy agreement best_agreement loss epochs"},
    "export RUN": {"": "checkpoint accuracy agreement", "accuracy.": "supernet extracted", "agreement.": "value low high error images"},
    "export": {"": "files checks"},
    "export --as code": {"": "package network branched files segments max_error warnings"},
    "run": {
        "": "median_ms p90_ms runs sequential ratio macs_ratio same_net_whole_graph_ms efficiency max_error trace processors replaced energy_mj energy_counter energy_reason on best_sequential",
        "sequential.": "name median_ms p90_ms",
        "best_sequential.": "name median_ms p90_ms",
        "planned.": "makespan_ms best_single_processor best_single_ms recommended",
        "comparisons[]": "name ratio low high",
    },
    "simulate": {
        "": "device source runs in_flight arrivals makespan_ms p50_ms p90_ms p99_ms elapsed_ms per_second busy communication_ms deadline_ms missed ideal_split_ms ideal_fraction efficiency busy_with_others jitter seed trace warnings planned_for plans decisions beside energy_mj heat frequencies shared admission",
        "plans[]": "bundle makespan_ms inferences",
        "beside[]": "bundle model arrivals makespan_ms inferences p50_ms p90_ms p99_ms deadline_ms missed",
        "admission.": "holds reason factor busy demands",
        "busy{}": "ms share",
        "busy_with_others[]": "processor share start_ms end_ms",
    },
    "evaluate": {"": "images top1 top5 original agreement top5_overlap error processors", "agreement.": "value low high images"},
    "train BUNDLE": {
        "": "bundle model kept refinement agreement measured checks warnings",
        "refinement.": "before after images steps seconds",
        "agreement.": "before after low high error_before error_after images source",
        "measured.": "value low high top5_overlap error images precision source segments bundle",
    },
    "predict": {
        "": "processors",
        "processors{}": "latency_ms low_ms high_ms precision optional calibrated kernels handover_ms kernel_count by_roofline fit",
    },
    "explain": {"": "ops", "ops[]": "name subgraph processor delegate reason ms"},
    "export --as cpp": {"": "model device out files sha256 warnings"},
    "verify": {"": "ok problems signer"},
    "verify --sign": {"": "bundle signer"},
    "profile tune": {"": "kernels", "kernels[]": "name kernel shape macs bytes precision before_ms after_ms choice"},
    "profile fit": {"": "profile file held_out", "held_out{}": "within_10 within_20 mape coverage networks groups low high"},
    "profile": {
        "": "profile file measurements processors held_out on",
        "processors{}": "runtime networks kernels within_10 within_20 mape",
        "held_out.": "within_10 within_20 mape",
    },
    "list devices": {"": "items", "items[]": "id name soc calibrated processors aliases left_out sources"},
    **{f"list {name}": {"": "items"} for name in ("models", "delegates", "env")},
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, tiny_bundle):
    """A bundle of a tiny network, with a training run and images next to it."""
    out = shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("json") / "bundle")
    recipe = network(out.parent)
    assert perform("train", recipe, "--out", out.parent / "run", "--set", "train.epochs=1").code == 0
    folder_of(out.parent / "pictures", 4)
    return out


#: Options of a short refinement, and of a check whether both bundles can keep their request rates.
ONE_STEP, RATES = ("--steps", 1, "--run-images", 1), ("--arrivals", "periodic:9", "--admit")


def arguments_of(verb, bundle):
    """Command-line arguments for one key of `KEYS`."""
    if verb == "verify --sign":
        pytest.importorskip("cryptography")
        from tests.scheduler.bundle.test_signature import write_keys

        return (bundle, "--sign", write_keys(bundle.parent, "mine")[0])
    if verb == "profile fit":
        write_world(bundle.parent / "measured")
    if verb == "export --as cpp":
        pytest.importorskip("ai_edge_litert")
        assert perform("export", bundle, "--format", "tflite", "--out", bundle.parent / "tflite").code == 0
        return (bundle.parent / "tflite", "--as", "cpp", "--out", bundle.parent / "runner")
    return {
        "advise": ("tiny_resnet", "--device", "pixel6"),
        "branch": ("tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE, "--out", bundle.parent / "again"),
        "search": ("tiny_resnet", "--device", "pixel6", "--processors", "cpu,gpu", *LOOSE, "--top", 3),
        "compare": (bundle,),
        "train": (bundle.parent / "network.toml", "--out", bundle.parent / "train", "--set", "train.epochs=1"),
        "export RUN": (bundle.parent / "run", "--no-bundle"),
        "export": (bundle, "--precision", "cpu=int8", "--out", bundle.parent / "int8"),
        "export --as code": (bundle, "--as", "code", "--out", bundle.parent / "emitted"),
        "run": (bundle, "--repeat", 2, "--warmup", 0),
        "simulate": (bundle, "--inferences", 20, "--busy", "gpu=0.5@0:5", "--deadline", 9, "--beside", f"{bundle}@periodic:9@9", *RATES),
        "evaluate": (bundle, "--images", bundle.parent / "pictures"),
        "train BUNDLE": (bundle, "--images", folder_of(bundle.parent / "many", 24), *ONE_STEP, "--out", bundle.parent / "refined"),
        "predict": ("tiny_resnet", "--device", "pixel6", "--kernels"),
        "explain": (bundle,),
        "verify": (bundle,),
        "profile fit": (bundle.parent / "measured", "--device", "pixel4", "--out", bundle.parent / "pixel4.fit.json"),
        "profile tune": (bundle, "--mode", "fast", "--budget", 0.1, "--map", "gpu=opencl"),
        "list models": ("models", "tiny*"),
        "list devices": ("devices",),
        "list delegates": ("delegates",),
        "list env": ("env",),
    }[verb]


def parts(data, path):
    """Objects of the JSON at one path of `KEYS`."""
    result = [data]
    for step in filter(None, path.split(".")):
        values = [value[step.rstrip("[]{}")] for value in result]
        result = values if step[-1] not in "]}" else [part for value in values for part in (value if step[-1] == "]" else value.values())]
    return result


def test_every_verb_has_its_keys_listed():
    assert {verb if verb in VERBS else verb.split()[0] for verb in KEYS} == set(VERBS)


#: Slow verbs, whose JSON other, faster tests also read.
LONG = ("profile fit", "export --as cpp", "advise", "export", "train BUNDLE")


#: Verbs whose keys are checked in their own tests: `web` needs a browser, and `profile` an idle machine.
ELSEWHERE = ("web", "profile")


@pytest.mark.parametrize(
    "verb", [pytest.param(verb, marks=pytest.mark.slow) if verb in LONG else verb for verb in KEYS if verb not in ELSEWHERE]
)
def test_json_of_a_verb_is_one_object_with_its_keys(capsys, bundle, verb):
    result = call(capsys, *(verb.split() if verb in VERBS else verb.split()[:1]), *arguments_of(verb, bundle), "--json", "--quiet")
    assert (result.code, result.err) == (0, ""), result.out
    check_keys(json.loads(result.out), verb)


def check_keys(data, verb):
    assert (list(data)[:2], data["schema"]) == (["schema", "version"], SCHEMA)
    for path, keys in KEYS[verb].items():
        found = parts(data, path)
        assert found, path
        for part in found:
            assert set(keys.split()) <= part.keys(), path


def test_file_on_a_runtime_has_its_keys(capsys, bundle):
    file = min(bundle.rglob("*.onnx"))
    answer = json.loads(call(capsys, "explain", file, "--runtime", "onnxruntime", "--device", "cpu", "--json", "--quiet").out)
    keys = "file runtime device operators partitions obstacles copies share fix log warnings"
    assert set(keys.split()) <= answer.keys()
    assert {"name", "op", "target", "taken", "partition", "macs", "reason"} <= answer["operators"][0].keys()
