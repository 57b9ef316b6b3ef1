"""Calibrate a profile by times of a few whole networks, and write it as a profile of its own."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from predictors.devices import PROFILE_FOLDER, list_devices, load_device, profile_path
from predictors.errors import StretchError, UsageError
from predictors.files import write_whole
from predictors.fits import prior_path, write_priors
from predictors.fitting.calibration import Calibrated, NetworkTime, calibrate, read_networks
from predictors.measurements.networks import load_measurements

if TYPE_CHECKING:
    from predictors.graph import OpGraph

#: Operators of networks that no phone's DSP or GPU runs everywhere: no such network is proposed to be measured.
_RARE = ("opaque", "layer_norm", "gelu")


def calibrate_profile(
    table: Path,
    device: str,
    target: Path,
    read: Callable[[str, str], "OpGraph"],
    *,
    statistic: str = "median",
    size: str = "",
    rewrites: tuple[str, ...] = (),
    step: Callable[[], object] = lambda: None,
) -> Mapping[str, Calibrated]:
    """Write `target` and its priors: a profile of the same device, calibrated by a table of networks.

    Args:
        read: Gives the network of a model and an input shape; both as the table has them.
        size: Input shape of rows that state none.
        rewrites: What networks had in place of some operators on every processor when they were measured, as ``grouped_conv=parts``.
    """
    path = profile_path(device)
    base = load_device(path)
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", target.stem) or (target.stem in list_devices() and target.parent.resolve() != PROFILE_FOLDER):
        raise UsageError(f"--out {target}: `{target.stem}` cannot be the id of a new profile", "choose another name, such as `mine`")
    if not target.parent.is_dir():
        raise StretchError(f"there is no folder {target.parent} to write {target.name} into", "make it, or choose another with --out")
    rows = read_networks(table)
    graphs: dict[tuple[str, str], OpGraph] = {}
    for row in rows:
        base.processor(row.processor).check_precision(row.precision or None)
        key = (row.model, row.input or size)
        if key not in graphs:
            graphs[key] = read(*key)
        step()
    candidates = {name: graph for name, graph in load_measurements("npu").graphs.items() if not any(op.kind in _RARE for op in graph.ops)}
    reference = base.id if path.parent.resolve() == PROFILE_FOLDER else str(path.resolve())
    source = f"{table.name}, {statistic} of the runs of each network"
    priors, news = calibrate(base, reference, rows, lambda row: graphs[row.model, row.input or size], candidates, source, rewrites)
    command = ["stretch", "profile", "--fit", table.as_posix(), "--device", device, "--out", target.stem, "--statistic", statistic]
    command += [*(["--input", size] if size else []), *(word for name in rewrites for word in ("--rewrite", name))]
    text = _profile_text(path.read_text(), target.stem, rows, base.processors, rewrites)
    write_priors(prior_path(target), target.stem, shlex.join(command), priors)
    try:
        write_whole(target, f"# Calibrated by whole networks: {shlex.join(command)}\n{text}".encode(), "device profile")
    except StretchError:
        prior_path(target).unlink()
        raise
    return news


def _profile_text(text: str, profile_id: str, rows: list[NetworkTime], families: Mapping[str, object], rewrites: tuple[str, ...]) -> str:
    """A profile's TOML under another id: a processor that was measured with one core set has it as its usual one."""
    text = re.sub(r"^aliases = .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r'^id = ".*"', f'id = "{profile_id}"', text, count=1, flags=re.MULTILINE)
    for family in families:
        measured = {row.processor.partition("[")[2].removesuffix("]") for row in rows if row.processor.partition("[")[0] == family}
        head, section = text.split(f"[processors.{family}]\n", 1)
        if len(measured) == 1 and (core_set := measured.pop()):
            section = re.sub(r'^default_core_set = ".*"', f'default_core_set = "{core_set}"', section, count=1, flags=re.MULTILINE)
        if rewrites:
            names = ", ".join(f'"{name}"' for name in rewrites)
            section = f"rewrites = [{names}]\n{section}"
        text = f"{head}[processors.{family}]\n{section}"
    return text
