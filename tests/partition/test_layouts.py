"""Which layouts a folder holds."""

import pytest

from datapipes.partition.layouts import layout_of


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([], set()),
        (["partition.json"], {"native"}),
        (["META.json"], {"pyg"}),
        (["META.json", "partition.json"], {"native", "pyg"}),
        (["graph.json"], set()),
    ],
)
def test_the_headers_say_which_layouts_are_there(tmp_path, files, found):
    for name in files:
        (tmp_path / name).write_text("{}")
    assert layout_of(tmp_path) == layout_of(str(tmp_path)) == found


def test_what_is_no_folder_or_has_a_folder_for_a_header_holds_none(tmp_path):
    assert layout_of(tmp_path / "missing") == set()
    (tmp_path / "file").write_text("")
    assert layout_of(tmp_path / "file") == set()
    (tmp_path / "META.json").mkdir()
    assert layout_of(tmp_path) == set()
