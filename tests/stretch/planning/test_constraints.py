"""Rules are found by their folder."""

from stretch.planning.constraints import all_constraints


def test_every_rule_of_the_folder_is_known_in_the_order_in_which_one_is_blamed():
    names = [each.option.name for each in all_constraints()]
    assert names == ["alpha", "beta", "balance", "segment_macs", "macs", "min_depth", "min_width", "n_meet", "peak_memory"]
