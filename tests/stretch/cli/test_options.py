"""The planner's options as flags."""

import json
import re

import msgspec
import typer
from typer.testing import CliRunner

from stretch.cli.options import planner_options
from stretch.cli.output import Output, verb
from stretch.planning.config import PLAN_OPTIONS, PlanConfig


@verb
@planner_options
def show(out: Output, *, before: int = 1, request: PlanConfig, after: int = 2) -> None:
    """Show what was asked for."""
    out.emit({"request": request, "around": [before, after]}, lambda console: console.print("shown"))


def invoke(*words):
    app = typer.Typer()
    app.command()(show)
    return CliRunner().invoke(app, words)


def asked(result):
    """The request that reached the verb, and the verb's own flags."""
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    return msgspec.convert(data["request"], PlanConfig), data["around"]


def test_every_option_has_a_flag_in_the_order_of_its_description():
    words = re.findall(r"^│ (--[\w-]+)", invoke("--help").stdout, re.MULTILINE)
    flags = ["--before", *(option.flag for option in PLAN_OPTIONS), "--after"]
    assert [word for word in words if word in flags] == flags


def test_flags_make_one_request_beside_the_verb_s_own():
    words = ("--macs", "0.9:1.1", "--precision", "cpu=int8", "--n-meet", "2", "--accuracy", "a.json", "--after", "7")
    request = PlanConfig(macs=(0.9, 1.1), precision={"cpu": "int8"}, n_meet=2, accuracy="a.json")
    assert asked(invoke(*words, "--json")) == (request, [1, 7])
