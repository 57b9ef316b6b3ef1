"""`branch` takes its record of options as keywords."""

import inspect

from stretch.api.main_job import BranchOptions, branch


def test_keywords_of_branch_are_the_fields_of_its_record_with_the_same_defaults():
    fields, keywords = (
        {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()} for kind in (BranchOptions, branch)
    )
    assert fields.items() <= keywords.items()
