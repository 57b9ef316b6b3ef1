"""Agreement in words: each figure that was measured is said, and none that was not."""

from scheduler.bundle.agreement import Agreement, BundleAgreement, SegmentAgreement
from stretch.report.agreement import agreement_lines

SHARE = {"value": 0.9, "low": 0.8, "high": 0.95, "top5_overlap": None}
NOTHING = dict.fromkeys(SHARE)
RUN = {"images": 20, "precisions": {"cpu": ("int8",), "gpu": ("fp16", "fp32")}, "delegates": {"cpu": "cpu", "gpu": "opencl"}}


def test_network_its_files_and_its_segments_have_a_line_each():
    alone = (SegmentAgreement(segment="s1", value=0.97, error=0.05), SegmentAgreement(segment="s2", value=None, error=None))
    run = BundleAgreement(**SHARE | {"value": 0.85}, error=0.2, **RUN)
    lines = list(agreement_lines(Agreement(**SHARE, error=0.1, images=40, segments=alone, bundle=run)))
    assert len(lines) == 3
    assert "40 images held back: the original's class in 90.0% (80.0% to 95.0%), error of the scores 0.100" in lines[0]
    assert "20 of them, int8 on cpu (run here by cpu), fp16/fp32 on gpu (run here by opencl): the original's class in 85.0%" in lines[1]
    assert lines[2] == "  s1 alone changed: the original's class in 97.0%, error 0.050"


def test_outputs_that_are_no_classes_have_an_error_alone():
    lines = list(agreement_lines(Agreement(**NOTHING, error=0.1, images=40, bundle=BundleAgreement(**NOTHING, error=0.2, **RUN))))
    assert [line.count("class") for line in lines] == [0, 0]
    assert "0.100" in lines[0]
    assert lines[1].endswith("error 0.200")


def test_answers_of_one_class_are_said_to_give_no_agreement_and_several_are_counted():
    [alike] = [line for line in agreement_lines(Agreement(**NOTHING, error=0.1, images=40, classes=1)) if "agreement" in line]
    assert alike.startswith("the original answers one class for these images")
    [line] = agreement_lines(Agreement(**SHARE, error=0.1, images=40, classes=7))
    assert "the original's class, one of 7 that it answers, in 90.0%" in line
