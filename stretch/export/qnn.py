"""Export of a bundle with its int8 DSP subgraphs compiled for named chips (QNN EPContext files)."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from predictors.errors import InfeasibleError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.rows import read_alone
from scheduler.checks.verify import random_input
from scheduler.delegates.dsp import compile_context, find_chip
from scheduler.progress import Progress, silent
from stretch.export.staging import copy_files, file_entry, staged, write_manifest
from stretch.quantize.compare import Loss, loss
from stretch.quantize.replay import replay, runner

#: Minimum cosine of compiled code with the int8 subgraph on ONNX Runtime.
MIN_COSINE = 0.999


@dataclass
class ContextExport:
    """What `export_contexts` wrote."""

    manifest: Manifest  # Of the new bundle.
    losses: dict[str, dict[str, Loss]]  # By chip and subgraph, of the code on the simulator against the int8 subgraph on ONNX Runtime.


def export_contexts(bundle: Bundle, out: Path, chips: Sequence[str], progress: Progress = silent) -> ContextExport:
    """Write a copy of a bundle that adds code for the DSP of each chip to its int8 subgraphs.

    Args:
        bundle: A bundle with int8 subgraphs on a dsp.
        chips: Keys of `scheduler.delegates.dsp.CHIPS`.
    """
    manifest = bundle.manifest
    for chip in chips:
        find_chip(chip)
    if out.resolve() == bundle.path.resolve():
        raise UsageError(f"the new bundle cannot replace {bundle.path}, which it is made from", "choose another folder with --out")
    compiled = [sub for sub in manifest.subgraphs if sub.processor == "dsp" and sub.precision == "int8"]
    if not compiled:
        raise UsageError(
            f"{bundle.path} has no int8 subgraph on a dsp, so there is nothing to compile",
            "make it int8 first: stretch export BUNDLE --precision dsp=int8 --images DIR --out NEW_BUNDLE",
        )
    tensors = replay(manifest, {sub.name: runner(str(bundle.file(sub.file))) for sub in manifest.subgraphs}, random_input(bundle))
    losses: dict[str, dict[str, Loss]] = {}
    contexts: dict[str, dict[str, str]] = {}
    with staged(out) as folder:
        files = copy_files(bundle, folder)
        for chip in chips:
            for sub in compiled:
                progress(f"{sub.name} for {chip}")
                name = f"contexts/{chip}/{sub.name}.onnx"
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                got = compile_context(bundle.file(sub.file), chip, path, read_alone(sub, tensors))
                code_loss = loss([(tensors[sub.output], got)])
                if code_loss.cosine < MIN_COSINE:
                    raise InfeasibleError(
                        f"subgraph `{sub.name}` compiled for {chip} has a cosine of {code_loss.cosine:.4f} with its int8 file, at least {MIN_COSINE} is required",
                        "run it from the int8 file, which the device compiles itself",
                    )
                losses.setdefault(chip, {})[sub.name] = code_loss
                contexts.setdefault(chip, {})[sub.name] = name
                files[name] = file_entry(path)
        record = {
            chip: {name: subgraph_loss.to_json() for name, subgraph_loss in subgraph_losses.items()}
            for chip, subgraph_losses in losses.items()
        }
        new_manifest = msgspec.structs.replace(
            manifest,
            files=files,
            contexts={**manifest.contexts, **contexts},
            checks=dict(manifest.checks) | {"contexts": {**manifest.checks.get("contexts", {}), **record}},
        )
        write_manifest(folder, new_manifest)
    return ContextExport(new_manifest, losses)
