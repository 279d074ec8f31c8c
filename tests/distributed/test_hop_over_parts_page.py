"""docs/hop-over-parts.md names the modules that a hop over a served part runs code of, on both sides."""

import re
import sys
import threading
from pathlib import Path

import torch
from plain_clients import in_parts, plain_graph

import datapipes as dp
from datapipes.distributed import DistGraph, PartitionServer
from datapipes.distributed.server import service

PAGE = Path(__file__).parents[2] / "docs" / "hop-over-parts.md"
PACKAGE = Path(dp.__file__).parent


def named_on_the_page() -> set[str]:
    return set(re.findall(r"^\| `([\w/]+\.py)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_page_names_the_modules_that_a_hop_crosses(tmp_path, monkeypatch):
    crossed, is_counted = set(), False

    def profile(frame, event, _):
        if is_counted and event == "call":
            crossed.add(frame.f_code.co_filename)

    def answer(*args):
        sys.setprofile(profile)  # gRPC makes the thread, so threading.setprofile does not reach it
        return answered(*args)

    answered = service.Service.answer
    monkeypatch.setattr(service.Service, "answer", answer)
    root = in_parts(tmp_path / "parts", plain_graph())
    threading.setprofile(profile)
    try:
        with PartitionServer(root, 0) as first, PartitionServer(root, 1) as second:
            parts = DistGraph.connect(root, {0: first.address, 1: second.address})
            items = dp.ItemSampler(dp.ItemSet(torch.arange(60)), batch_size=20)
            sampler, minibatches = items.sample_neighbor(parts, [3]), [*items]
            sampler.transform(minibatches[0])  # connects
            is_counted = True
            sys.setprofile(profile)
            sampler.transform(minibatches[1])
            sys.setprofile(None)
            is_counted = False
            parts.close()
    finally:
        threading.setprofile(None)
    modules = {str(Path(name).relative_to(PACKAGE)) for name in crossed if Path(name).is_relative_to(PACKAGE)}
    over_parts = {name for name in modules if name.startswith(("distributed/", "partition/"))}
    assert over_parts | {"sampling/choice_sampler.py"} == named_on_the_page()
    assert f"the {len(over_parts)} modules" in PAGE.read_text(encoding="utf-8")
