"""Settings of a verb: flags, `--set` and `--config` make one request; flags also state input sizes."""

import contextlib
import io
import json
import re
from typing import Annotated

import msgspec
import pytest
import typer

from predictors.errors import StretchError, UsageError
from stretch.api.parameters import AdvancedOption, PreprocessingOption, read_inputs
from stretch.cli.options import verb_command
from stretch.cli.output import Output
from stretch.cli.planner import FLAGS, Plan
from stretch.planning.config import PLAN_OPTIONS, PlanConfig


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """Values that the verb shows with the request."""

    after: Annotated[int, typer.Option()] = 2
    count: Annotated[int, msgspec.Meta(ge=3), AdvancedOption("How many.")] = 5
    preprocessing: PreprocessingOption = None


def show(out: Output, *, before: int = 1, config: Plan, rest: Shown) -> None:
    """Show the request."""
    out.emit({"request": config, "rest": [before, rest.after, rest.count, rest.preprocessing]}, lambda console: console.print("shown"))


def invoke(*args):
    out, err = io.StringIO(), None
    with contextlib.redirect_stdout(out):
        try:
            verb_command("show", show)([str(arg) for arg in args], standalone_mode=False)
        except (StretchError, SystemExit) as error:
            err = error
    return out.getvalue(), err


def parsed(*args):
    """The request that reached the verb, and the other flags and settings of the verb."""
    data = json.loads(invoke(*args, "--json")[0])
    return msgspec.convert(data["request"], PlanConfig), data["rest"]


def test_common_options_have_flags_in_their_order_and_all_options_are_listed():
    flags = [f"--{option.name.replace('_', '-')}" for option in PLAN_OPTIONS if option.name in FLAGS]
    assert [flag for flag in re.findall(r"^  (--[\w-]+)", invoke("--help")[0], re.MULTILINE) if flag in flags] == flags
    names = [line.split()[0] for line in invoke("--set", "help")[0].splitlines() if line[0].isalpha()][1:]
    assert names == [*(option.name for option in PLAN_OPTIONS), "count", "preprocessing"]


def test_flags_settings_and_a_file_make_one_request_next_to_the_verbs_flags(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text('macs = [0.7, 1.4]\naccuracy = "a.json"\nalpha = 3\nbeta = 4\ncount = 9\n[preprocessing]\ncrop = 0.5\n')
    args = ("--config", file, "--set", "macs=0.9:1.1", "--precision", "cpu=int8", "--set", "n_meet=2", "--alpha", "100", "--after", "7")
    request = PlanConfig(macs=(0.9, 1.1), precision={"cpu": "int8"}, n_meet=2, accuracy=str(tmp_path / "a.json"), alpha=100.0, beta=4.0)
    assert parsed(*args) == (request, [1, 7, 9, {"crop": 0.5}])
    assert parsed() == (PlanConfig(), [1, 2, 5, None])


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        (["maks=1"], "unknown setting `maks`", "did you mean `macs`?"),
        (["after=3"], "`after` is no setting", "it has a flag, --after"),
        (["macs"], "--set macs is not understood", "write it as --set KEY=VALUE"),
        (["macs=wide"], "`macs=wide` is not understood", "write it as `macs=0.97:1.03`"),
        (["alpha=-1"], "`alpha` is out of range", None),
        (["count=2"], "`count` is out of range: expected `int` >= 3", None),
        (["strategy=guess"], "`strategy` cannot be `guess`", "choose from exact, grid"),
        (["preprocessing.size=9", "preprocessing.crop=1"], "both say how much of a picture is kept", "give one of the two"),
    ],
)
def test_invalid_setting_is_named_with_a_hint(settings, message, hint):
    _, error = invoke(*(part for setting in settings for part in ("--set", setting)))
    assert isinstance(error, StretchError)
    assert message in error.message
    assert hint is None or error.hint == hint


@pytest.mark.parametrize(
    ("texts", "shapes"),
    [
        (["3×32×48"], (1, 3, 32, 48)),
        ([" 1x3x32x48"], (1, 3, 32, 48)),
        (["image=1x3x8x8", "words=1x16"], {"image": (1, 3, 8, 8), "words": (1, 16)}),
        (["1x3x8x8", "1x1x8x8"], [(1, 3, 8, 8), (1, 1, 8, 8)]),
        (["x=2x5"], {"x": (2, 5)}),
        ([], None),
    ],
)
def test_inputs_are_read_by_name_or_in_order(texts, shapes):
    assert read_inputs(texts) == shapes


@pytest.mark.parametrize("text", ["3x224", "3x0x224", "3x99999x3", "3x²x4", "x=1x0"])
def test_input_other_than_a_shape_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"is no shape|is not channels, height and width") as refused:
        read_inputs([text])
    assert "3x224x224" in refused.value.hint
    shape = refused.value.hint.rpartition("NAME=")[2].partition(";")[0]
    assert read_inputs([f"x={shape}"]) == {"x": tuple(map(int, shape.split("x")))}


def test_inputs_that_share_an_option_are_refused_with_one_option_per_input():
    with pytest.raises(UsageError, match="has several inputs") as refused:
        read_inputs(["a=1x3x8x8,words=1,16"])
    assert refused.value.hint.endswith("--input a=1x3x8x8 --input words=1,16")


@pytest.mark.parametrize("other", ["1x3x8x8", "a=1x3x8x8"])
def test_mixed_or_repeated_input_names_are_refused(other):
    with pytest.raises(UsageError, match="need distinct names"):
        read_inputs(["a=1x3x8x8", other])
