"""The unbranched networks of a bundle, each as a bundle with one subgraph."""

from dataclasses import replace

import msgspec

from predictors.devices import Precision
from predictors.errors import StretchError
from predictors.host import HOST
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import SubgraphEntry
from scheduler.formats.onnx import open_onnx


def as_recommended(bundle: Bundle) -> Bundle:
    """Return a bundle with the recommended unbranched network as its only subgraph, or the bundle itself if branches are recommended.

    Raises:
        StretchError: If the bundle does not contain that network.
    """
    manifest = bundle.manifest
    if manifest.recommended in ("branched", "no clear winner"):
        return bundle
    kind, _, processor = manifest.recommended.partition(":")
    name = "original" if kind == "single" else kind
    file = manifest.whole if kind == "whole_graph" else manifest.controls.get(name)
    if file is None:
        raise StretchError(
            f"{bundle.path} recommends `{name[:80]}` and does not contain it", "write the bundle again with `stretch branch`"
        )
    return whole_on(bundle, name, file, processor or str(manifest.predicted.get(f"{kind}_processor") or HOST))


def whole_on(bundle: Bundle, name: str, file: str, processor: str, precision: Precision = "fp32") -> Bundle:
    """Return a bundle with a whole network on one processor as its only subgraph.

    Args:
        name: Name of the network, as in `controls`.
        file: File of the network in the bundle.
    """
    manifest = bundle.manifest
    inputs, outputs = (tuple(ends) for ends in open_onnx(bundle.file(file)).ends)
    macs = manifest.control_macs.get(name, manifest.model.macs)
    # the network reads and writes the same tensors as the branches, under other names
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    crossing = [(tensor_name, tensors[then], "input", name) for tensor_name, then in zip(inputs, manifest.inputs, strict=True)]
    crossing += [(now, tensors[then], name, "output") for now, then in zip(outputs, manifest.outputs, strict=True)]
    changed = msgspec.structs.replace(
        manifest,
        model=msgspec.structs.replace(manifest.model, macs=macs),
        inputs=inputs,
        outputs=outputs,
        tensors=tuple(msgspec.structs.replace(t, name=now, producer=producer, consumers=(to,)) for now, t, producer, to in crossing),
        subgraphs=(SubgraphEntry(name, name, processor, file, inputs, outputs, macs, precision=precision),),
        whole=file,
        joins=(),
        own=None,
        tflite=None,
        **{name: {} for name in ("controls", "control_macs", "int8_controls", "checks", "contexts", "aot")},
    )
    return replace(bundle, manifest=changed)
