"""`stretch advise`: whether to branch a model, on each of many devices."""

from predictors.devices import load_devices
from stretch.api.verbs import advise as advise_model
from stretch.cli.options import Call, calls
from stretch.cli.output import Output, verb
from stretch.cli.pages import Html


@verb
@calls(advise_model)
def advise(out: Output, run: Call, html: Html = None) -> None:
    """Say for each device whether to branch a model, and why."""
    from stretch.report.comparison import advice_page

    profiles = load_devices(run.keywords["device"])
    # torch is imported, the network loaded and captured
    with out.progress("advising", total=len(profiles) + 3) as progress:
        advice = run(device=profiles, progress=progress)
    if run.keywords["input_shape"] is None:
        out.note_later(f"input {'×'.join(map(str, advice.input))}: the usual size, --input changes it")
    out.show(advice, advice_page, html)
