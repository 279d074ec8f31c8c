"""Which layouts a folder holds."""

import re
from pathlib import Path

import pytest

from datapipes.partition import layouts
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


def test_who_needs_the_name_of_a_header_imports_it():
    folder = Path(layouts.__file__).parent
    texts = {path.stem: path.read_text(encoding="utf-8") for path in folder.rglob("*.py") if path.parent.name != "pyg"}
    for name, owners in (("partition.json", ["layouts"]), ("META.json", [])):  # the other's owner is pyg/pyg_names.py
        written = re.compile(rf'"{re.escape(name)}"|{re.escape(re.escape(name))}')
        assert [module for module, text in texts.items() if written.search(text)] == owners
