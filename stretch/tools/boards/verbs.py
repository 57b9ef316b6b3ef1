"""Runs and profiles on a board; their files are copied back and checked like any other file."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from predictors.devices import load_device
from predictors.errors import StretchError
from predictors.files import write_whole
from predictors.fits import fit_path
from predictors.measurements.networks import KERNELS, LATENCIES, NETWORKS, SOURCE, load_measurements
from predictors.system import deferred_interrupts
from scheduler.answer import read_run_answer
from scheduler.bundle.load import Bundle
from scheduler.formats.npy import read_npy
from scheduler.tools.boards.board import Board, BoardTarget, open_board
from stretch.cli.output import Output
from stretch.cli.profile import ProfileOptions, show_profile
from stretch.cli.run import RunOptions
from stretch.profile.places import answer_board
from stretch.profile.run import check_target
from stretch.report.execution import run_page

#: Maximum size of a timeline, a table or a file of a profile, in bytes.
_MAX_BYTES = 256 << 20


def run_there(out: Output, board_target: BoardTarget, bundle: Bundle, options: RunOptions) -> None:
    """Run a bundle on a board, and copy its timeline and table back."""
    files = {"trace": options.trace, "csv": options.table}
    places = [f"{name}={target}" for name, target in options.mapping.items()]
    names = None if options.processors is None else ",".join(options.processors)
    chosen = {"map": places, "processors": names, "priority": options.priority}
    passed_on = ("dsp_code", "trust_code", "in_flight", "recommended", "time_limit", "repeat", "warmup")
    arguments = flags(out.quiet, **chosen, **{name: getattr(options, name) for name in passed_on})
    if options.input_file is not None:
        # a wrong file is reported before anything is copied
        read_npy(options.input_file, "input")
    with open_board(board_target, out) as board:
        bundle_there, folder = board.copy_bundle(bundle), board.scratch()
        copied = {"input": None if options.input_file is None else board.copy_file(folder, options.input_file)}
        given_files = {flag: path for flag, path in files.items() if path is not None}
        raw_answer = board.run(
            ["run", bundle_there, *arguments, *flags(False, **copied, **{flag: flag for flag in given_files})], folder, out.note
        )
        answer = read_run_answer(raw_answer)
        for flag, path in given_files.items():
            write_whole(path, board.fetch(f"{folder}/{flag}", _MAX_BYTES), "trace")
        answer = replace(answer, bundle=bundle.path, trace=files["trace"], csv=files["csv"], on=board.answer)
    # the board's own messages were already passed on
    out.warnings += answer.warnings
    out.show(answer, lambda answer: run_page(answer, (), None))


def measure_there(out: Output, target: BoardTarget, options: ProfileOptions) -> None:
    """Profile a board."""
    name, folder = options.name, options.folder
    check_target(name, folder)
    if (folder / f"{name}.measurements").exists() and not options.resume:
        raise StretchError(
            f"{folder / f'{name}.measurements'} has measurements already", "go on with them by --resume, or choose another --name or --out"
        )
    arguments = flags(out.quiet, processors=list(options.processors), budget=options.budget, networks=options.most)
    with open_board(target, out) as board:
        try:
            answer = profile_there(board, name, folder, arguments, options.resume, out.note)
        except KeyboardInterrupt:
            out.note(f"the measurements are kept on {target.host}; continue with --resume")
            raise
        data = {key: value for key, value in answer.items() if key not in ("schema", "version")} | {"on": board.answer}
    out.emit(data, lambda console: show_profile(console, data))


def profile_there(board: Board, name: str, out: Path, words: Sequence[str], resume: bool, report: Callable[[str], None]) -> dict[str, Any]:
    """Measure on a board and write ``<name>.toml``, ``<name>.fit.json`` and ``<name>.measurements`` here.

    The measurements stay on the board until all are copied, so that no interruption loses them.
    """
    remote, measurements = f"profiles/{name}", f"{name}.measurements"
    files = {path.name: path for path in (out / measurements).iterdir() if path.is_file()} if (out / measurements).is_dir() else {}
    is_kept = board.keeps(f"{remote}/{measurements}")
    if is_kept and not resume:
        raise StretchError(
            f"{board.host} keeps measurements for `{name}` of a run that did not come to its end",
            "go on with them by --resume, or choose another --name",
        )
    if not is_kept:
        board.copy_folder(f"{remote}/{measurements}" if files else remote, files)
    answer = board.run(["profile", f"--name={name}", "--out=.", *words, *(["--resume"] if resume else [])], remote, report, answer_board)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}.") as folder:
        draft = Path(folder) / f"{name}.toml"
        (draft.parent / measurements).mkdir()
        for file in (draft.name, fit_path(draft).name, *(f"{measurements}/{part}" for part in (SOURCE, NETWORKS, LATENCIES, KERNELS))):
            (draft.parent / file).write_bytes(board.fetch(f"{remote}/{file}", _MAX_BYTES))
        load_device(draft)
        load_measurements(draft.parent / measurements)
        with deferred_interrupts():
            if (out / measurements).exists():
                os.replace(out / measurements, draft.parent / "old")
            os.replace(draft.parent / measurements, out / measurements)
            # a profile without fits is valid; a profile with the fits of another one is not
            (out / fit_path(draft).name).unlink(missing_ok=True)
            os.replace(draft, out / draft.name)
            os.replace(fit_path(draft), out / fit_path(draft).name)
    board.remove(remote)
    return answer | {"file": str(out / f"{name}.toml"), "measurements": str(out / measurements)}


def flags(quiet: bool, **values: Any) -> list[str]:
    """Return the arguments of a command line (`values`: by flag, with `_` for `-`; None and False are omitted, lists repeat a flag)."""
    arguments = ["--quiet"] if quiet else []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            arguments.append(flag)
        elif value is not None and value is not False:
            arguments += [f"{flag}={element}" for element in (value if isinstance(value, list) else [value])]
    return arguments
