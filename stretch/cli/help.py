"""Help of the verbs: headings, two examples per verb, common options first, options of remote devices on request."""

import contextvars
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand, TyperOption

from predictors.errors import UsageError

if TYPE_CHECKING:
    from stretch.planning.options import Option

#: Verbs by goal, in the order of `stretch --help`; others follow under `More`.
HEADINGS = {
    "Decide": ("advise", "predict", "search"),
    "Build": ("branch", "train", "export"),
    "Run": ("run", "evaluate", "simulate", "explain", "verify", "compare", "web"),
    "Devices": ("profile", "profile fit", "profile tune", "list"),
}

#: Two example commands for each verb.
EXAMPLES = {
    "advise": ("stretch advise resnet34 --device a03s,pixel6", "stretch advise net.onnx --input 3x224x224"),
    "predict": ("stretch predict resnet18 --device mi9", "stretch predict net.onnx --device pixel6 --kernels"),
    "search": ("stretch search resnet50 --device mi9-release", "stretch search resnet50 --device mi9-release --pareto latency,macs"),
    "branch": ("stretch branch resnet34 --device a03s", "stretch branch net.onnx --device pixel6 --lossless"),
    "train": ("stretch train recipes/resnet56_cifar10.toml --data cifar10", "stretch train runs/net --images photos"),
    "export": ("stretch export runs/net --precision cpu=fp16", "stretch export runs/net --format tflite"),
    "run": ("stretch run runs/net", "stretch run runs/net --on user@host"),
    "evaluate": ("stretch evaluate runs/net --images photos", "stretch evaluate runs/net --images photos --image-count 200"),
    "simulate": ("stretch simulate runs/net", "stretch simulate runs/net --busy gpu=0.5@0:1000"),
    "explain": ("stretch explain runs/net", "stretch explain net.onnx --runtime openvino"),
    "verify": ("stretch verify runs/net", "stretch verify runs/net --trust key.pem"),
    "compare": ("stretch compare runs/a runs/b", "stretch compare resnet18 --device pixel6 --device mi9"),
    "web": ("stretch web runs/net", "stretch web --profile myphone --host 0.0.0.0"),
    "profile": ("stretch profile --name laptop", "stretch profile --name laptop --resume --budget 30"),
    "profile fit": (
        "stretch profile fit networks.csv --device pixel6 --out mine",
        "stretch profile fit ./myphone.measurements --device mi9 --measured-on myphone",
    ),
    "profile tune": ("stretch profile tune runs/net", "stretch profile tune runs/net --map gpu=opencl --budget 1"),
    "list": ("stretch list devices", "stretch list models 'resnet*'"),
}

#: Common options, by verb.
COMMON = {
    "advise": "--device --input --precision",
    "predict": "--device --input --processor --precision",
    "search": "--device --pareto --objective --images --top --out",
    "branch": "--device --lossless --images --out --dry-run",
    "train": "--out --images --minutes --resume",
    "export": "--out --format --precision --images",
    "run": "--map --repeat --recommended --on --adb --html",
    "evaluate": "--images --image-count",
    "simulate": "--device --inferences --busy --deadline",
    "explain": "--device --runtime --map",
    "web": "--profile --host",
    "profile": "--name --processors --budget --out",
    "profile fit": "--device --out",
    "profile tune": "--map --budget",
}

#: Whether the help shows the options of phones and boards.
REMOTE: contextvars.ContextVar[bool] = contextvars.ContextVar("REMOTE", default=False)

#: Flag that requests this help.
HELP_REMOTE = "--help-remote"

#: Prefixes of the help of these options, and their headings.
_REMOTE = {"With --on:": "With --on, on a board", "With --adb:": "With --adb, on a phone"}

#: Replacements of the parser's notation with a readable one.
_NOTATIONS = (
    (re.compile(r"<list\[(\w+)\]>"), lambda match: f"<{match[1].lower()}>"),
    (re.compile(r"<(\w+) range>"), lambda match: f"<{match[1]}>"),
    (re.compile(r"\[default: \((.*?)\)\]"), lambda match: f"[default: {match[1]}]"),
)


class Verb(TyperCommand):
    """A command with examples and options under headings in its help; it does not import rich."""

    #: Options of `--set`, by name.
    settings: "Mapping[str, Option]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse words; refuse a repeated option with a single value, because the first value would be lost."""
        *_, given = self.make_parser(ctx).parse_args(args=list(args))
        for param in given:
            if isinstance(param, TyperOption) and given.count(param) > 1 and not (param.multiple or param.is_flag):
                hint = "separate several by commas" if "comma" in (param.help or "") else "give it once"
                raise UsageError(f"{max(param.opts, key=len)} is given twice", hint)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, the arguments and the options."""
        name, shown = str(self.name), REMOTE.get()
        if name in EXAMPLES:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {example}\n" for example in EXAMPLES[name]))
        common = COMMON.get(name, "").split()
        panels: dict[str, list[Any]] = {"Arguments": [], "Common": [], "Options": []}
        remote: dict[str, list[Any]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            flag, text = (_readable(part) for part in record)
            start = next((start for start in _REMOTE if text.startswith(start)), None)
            if start is not None:
                remote.setdefault(_REMOTE[start], []).append((flag, text.removeprefix(start).strip()))
                continue
            default_heading = "Arguments" if param.param_type_name == "argument" else "Options"
            heading = "Common" if set(param.opts) & set(common) else getattr(param, "rich_help_panel", None) or default_heading
            panels.setdefault(heading, []).append((flag, text))
        panels["Common"].sort(
            key=lambda record: min((common.index(word) for word in re.split(r"[ ,]+", record[0]) if word in common), default=0)
        )
        for heading, records in (remote if shown else panels).items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)
        if remote and not shown:
            with formatter.section("Phones and boards"):
                formatter.write(f"  stretch {name} {HELP_REMOTE}\n")


def _readable(text: str) -> str:
    for pattern, change in _NOTATIONS:
        text = pattern.sub(change, text)
    return text
