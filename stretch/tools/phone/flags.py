"""`stretch run --adb`: a run on a phone."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from stretch.cli.extensions import extends
from stretch.cli.output import Output, no_flags
from stretch.tools.phone import UNTESTED, PhoneRequest

if TYPE_CHECKING:
    from scheduler.bundle.load import Bundle
    from stretch.cli.run import RunOptions

#: Options only for runs on a phone, and options only for runs on this machine or a board.
PHONE = "serial benchmark runner libraries measurements profile core_set cores"
COMPUTER = "mapping processors priority dsp_code in_flight recommended table html on there wheels extras ssh_config"


@extends("run")
@dataclass(frozen=True)
class OnPhone(PhoneRequest):
    """Options for a phone in place of this machine."""

    adb: Annotated[bool, typer.Option("--adb", help="Run on a phone through the `adb` program; not tested on a real phone yet.")] = False

    def asked(self) -> bool:
        """Return whether the options name a phone."""
        if self.adb:
            no_flags("--adb", COMPUTER)
        else:
            no_flags("a run without --adb", PHONE, "add --adb")
        return self.adb

    def run(self, out: Output, bundle: "Bundle", options: "RunOptions") -> None:
        """Run a bundle on the phone."""
        from scheduler.checks.verify import random_input
        from scheduler.formats.npy import read_npy
        from stretch.tools.phone.measure import measure
        from stretch.tools.phone.report import phone_page

        x = random_input(bundle) if options.input_file is None else read_npy(options.input_file, "input")
        out.warn(UNTESTED)
        runs, warmup, limit = options.repeat or 50, options.warmup, options.time_limit
        with out.progress("on the phone") as step:
            answer = measure(bundle, replace(self, runs=runs, warmup=warmup, limit=limit, trace=options.trace), x, step)
        out.show(answer, phone_page)
