"""What notebooks show of minibatches, graphs and data sets: every text is escaped, and nothing is fetched."""

import re

import pytest
import torch
from pipelines import fetched, small_graph

import datapipes as dp
from datapipes.base.html import MOST_ROWS, table_html

HOSTILE = "</td><script>alert(1)</script>"


def cells(html: str) -> list[str]:
    assert not re.search(r"<(script|img|link|iframe)|url\(|https?:", html)
    return [
        re.sub("<[^>]*>", "", each).strip()
        for each in re.findall(r"<(?:td|th|b|div)[ >][^\n]*?</(?:td|th|b|div)>", html)
    ]


def test_texts_are_escaped_and_long_tables_are_cut():
    html = table_html(HOSTILE, [("name", HOSTILE), *((f"row {i}", i) for i in range(MOST_ROWS + 5))])
    assert "<script>" not in html
    assert html.count("&lt;script&gt;") == 2
    assert f"row {MOST_ROWS - 1}" in html
    assert f"row {MOST_ROWS}<" not in html
    assert "... and 5 more" in html


def test_a_minibatch_shows_its_tensors():
    shown = cells(next(iter(fetched()))._repr_html_())
    assert shown[0] == "MiniBatch 0 of epoch 0"
    assert "seeds" in " ".join(shown)
    assert shown[shown.index("seeds") + 1 :][:3] == ["int64", "[4]", "cpu"]


def test_a_graph_shows_its_types_and_attributes():
    assert cells(small_graph()._repr_html_())[-6:] == ["nodes", "40", "", "edges", "200", ""]
    arrays = (torch.tensor([0, 1]), torch.tensor([0]))
    graph = dp.HeteroCSCGraph({("a", HOSTILE, "b"): arrays}, num_nodes={"a": 2, "b": 1})
    html = graph._repr_html_()
    assert "<script>" not in html
    assert "nodes a" in cells(html)


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_a_data_set_shows_what_describe_says(heterogeneous):
    data = dp.datasets.debian_packages(heterogeneous=heterogeneous)
    shown = " ".join(cells(data._repr_html_()))
    for word in data.describe().split()[: 40 if heterogeneous else None]:
        assert word.strip(",:") in shown
