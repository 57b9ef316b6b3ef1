"""Bad bundles and bad requests of them: one sentence, the right exit code, nothing computed."""

import json
import shutil
import signal

import pytest

from stretch.cli.output import Output
from tests.stretch.cli.commands import call, tree

pytestmark = pytest.mark.torch

QUICK = ("--repeat", 1, "--warmup", 0)


@pytest.fixture
def bundle(tiny_bundle, tmp_path):
    """A copy to damage."""
    return shutil.copytree(tiny_bundle, tmp_path / "bundle")


def edit(bundle, change):
    """Change the manifest of a bundle."""
    path = bundle / "bundle.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def first_subgraph(bundle):
    """File name of the first subgraph."""
    return json.loads((bundle / "bundle.json").read_text())["subgraphs"][0]["file"]


def delete(bundle):
    (bundle / first_subgraph(bundle)).unlink()


def truncate(bundle):
    path = bundle / first_subgraph(bundle)
    path.write_bytes(path.read_bytes()[:-100])


def swap(bundle):
    files = [s["file"] for s in json.loads((bundle / "bundle.json").read_text())["subgraphs"][:2]]
    one, other = ((bundle / file).read_bytes() for file in files)
    (bundle / files[0]).write_bytes(other)
    (bundle / files[1]).write_bytes(one)


def flip(bundle):
    path = bundle / first_subgraph(bundle)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def escape(bundle):
    (bundle.parent / "outside.onnx").write_bytes((bundle / first_subgraph(bundle)).read_bytes())

    def change(manifest):
        name = manifest["subgraphs"][0]["file"]
        manifest["subgraphs"][0]["file"] = "../outside.onnx"
        manifest["files"]["../outside.onnx"] = manifest["files"].pop(name)

    edit(bundle, change)


def link_away(bundle):
    path = bundle / first_subgraph(bundle)
    path.rename(bundle.parent / "outside.onnx")
    path.symlink_to(bundle.parent / "outside.onnx")


def newer(bundle):
    edit(bundle, lambda manifest: manifest.update(schema=99, tomorrow=True))


def unknown_key(bundle):
    edit(bundle, lambda manifest: manifest.update(extra=1))


def garble(bundle):
    (bundle / "bundle.json").write_text("{")


def forget_manifest(bundle):
    (bundle / "bundle.json").unlink()


def loop(bundle):
    """Let the first subgraph read what the last one writes."""
    edit(bundle, lambda m: m["subgraphs"][0].update(inputs=m["subgraphs"][-1]["outputs"]))


DAMAGES = [delete, truncate, swap, flip, escape, link_away, newer, unknown_key, garble, forget_manifest, loop]


@pytest.mark.representatives(21)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("verb", ["run", "explain"])
def test_damaged_bundle_is_refused_and_left_as_it_is(capsys, bundle, damage, verb):
    damage(bundle)
    before = tree(bundle)
    result = call(capsys, verb, bundle, *(QUICK if verb == "run" else ()))
    assert result.code == 1
    assert result.message
    assert tree(bundle) == before


def test_missing_bundle_is_named(capsys, tmp_path):
    result = call(capsys, "run", tmp_path / "absent", *QUICK)
    assert result.code == 1
    assert "absent" in result.message


def test_interrupt_of_a_run_ends_with_130_and_writes_no_trace(capsys, bundle, tmp_path, monkeypatch):
    progress = Output.progress

    def interrupted(self, what, total=None):
        """The verb's own progress, whose first step raises the signal."""
        bar = progress(self, what, total)
        bar.__enter__()

        class Bar:
            def __enter__(self):
                return lambda doing="": signal.raise_signal(signal.SIGINT)

            def __exit__(self, *error):
                bar.__exit__(None, None, None)

        return Bar()

    monkeypatch.setattr(Output, "progress", interrupted)
    result = call(capsys, "run", bundle, "--trace", tmp_path / "trace.json", *QUICK)
    assert (result.code, result.message) == (130, "interrupted")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_name_with_terminal_codes_is_printed_escaped(capsys, bundle):
    edit(bundle, lambda manifest: manifest["model"].update(name="\x1b[31mred"))
    result = call(capsys, "run", bundle, *QUICK)
    assert "\x1b" not in result.out + result.err
