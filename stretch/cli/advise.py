"""`stretch advise`: whether to branch a model, on each of many devices."""

from predictors.devices import load_devices
from stretch.api.parameters import InputShape, Model, TrustCode
from stretch.api.verbs import AdvisedDevices, AdvisedPrecision
from stretch.api.verbs import advise as advise_model
from stretch.cli.output import Output
from stretch.cli.pages import Html


def advise(
    out: Output,
    model: Model,
    device: AdvisedDevices = "*",
    precision: AdvisedPrecision = None,
    input_shape: InputShape = None,
    trust_code: TrustCode = False,
    html: Html = None,
) -> None:
    """Say for each device whether to branch a model, and why."""
    from stretch.report.comparison import advice_page

    profiles = load_devices(str(device))
    # three more steps: import torch, load and capture the network
    with out.progress("advising", total=len(profiles) + 3) as progress:
        advice = advise_model(model, profiles, precision=precision, input_shape=input_shape, trust_code=trust_code, progress=progress)
    if input_shape is None:
        out.note_later(f"input {'×'.join(map(str, advice.input))}: the usual size, --input changes it")
    out.show(advice, advice_page, html)
