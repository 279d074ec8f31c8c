"""The report of a loader: what it shows, that a trace gives the same, and what is refused."""

import contextlib
import itertools
import json
import os
import re
import signal
import time
import types
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser

import pytest
from pipelines import BUILDERS, fetched, items, sampled

import datapipes as dp
from datapipes.base.clock import GAP_S, StageClock
from datapipes.loader.report import as_html, write_report
from datapipes.loader.trace import VERSION, read_trace
from datapipes.loader.workers.workers import Workers


class Page(HTMLParser):
    """The tags and the text of a page; `left` are tags that were not closed."""

    VOID = ("meta", "polyline", "rect", "i")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes, self.text, self.left = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.VOID:
            self.left.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.left.pop() == tag

    def handle_data(self, data):
        self.text += data


class Named(dp.MiniBatchTransformer):
    """A stage whose arguments are hostile."""

    def transform(self, minibatch):
        return minibatch

    def describe(self):
        return {"note": "</div><script>alert(1)</script><img src=x onerror=alert(2)>"}


@pytest.fixture
def loader():
    with dp.DataLoader(Named(fetched(sampled(items(60))))) as made:
        yield made


def test_the_report_shows_the_chain_its_times_and_the_bottleneck(loader, tmp_path):
    for _ in range(3):
        list(loader)
    loader.report(tmp_path / "report.html")
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.left == ["html"] or page.left == []
    words = " ".join(page.text.split())
    for label in ("0 item_sampler", "1 sample_neighbor", "2 fetch_feature", "3 named", "consumer"):
        assert label in words
    found = loader.stats().found
    assert f"{found.found[:1].upper()}{found.found[1:]}" in words
    assert found.advice in words
    assert loader.stats().bottleneck == str(found)
    assert str(loader.stats()).endswith(f"bottleneck: {found}")
    assert {value for tag, name, value in page.attributes if tag == "svg" and name == "aria-label"} >= {"minibatches/s"}


def test_texts_from_outside_are_escaped_and_nothing_is_fetched(loader, tmp_path):
    list(loader)
    loader.trace(tmp_path / "trace.json")
    for html in (as_html(read_trace(tmp_path / "trace.json")), loader._repr_html_()):
        page = Page(html)
        assert "<script>alert(1)</script>" in page.text
        assert not {tag for tag, _, _ in page.attributes} & {"script", "link", "img", "iframe", "object"}
        names = {name for _, name, _ in page.attributes}
        assert not {name for name in names if name in ("src", "href", "srcset") or name.startswith("on")}
        assert not re.search(r"url\(|@import|https?:", html)


def test_a_trace_gives_the_report_of_its_loader(loader, tmp_path):
    list(loader)
    loader.trace(tmp_path / "trace.json")
    loader.report(tmp_path / "report.html")
    again = read_trace(tmp_path / "trace.json")
    assert again == json.loads(json.dumps(loader.stats()))
    assert again.bottleneck == loader.stats().bottleneck
    write_report(tmp_path / "again.html", again)
    assert (tmp_path / "again.html").read_text() == (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("name", [name for name in BUILDERS if "loader" in name or "processes" in name])
def test_every_kind_of_loader_has_a_report(name, tmp_path):
    with dp.DataLoader(BUILDERS[name]()) as loader:
        list(loader)
        loader.report(tmp_path / "report.html")
        loader.trace(tmp_path / "trace.json")
    assert read_trace(tmp_path / "trace.json").found is not None
    assert Page((tmp_path / "report.html").read_text()).text.count("What bounds this loader") == 2  # title and heading


def test_deaths_and_minibatches_that_were_made_again_are_counted(tmp_path):
    with dp.DataLoader(sampled(items(60)), 1, multiprocessing_context="fork") as loader:
        minibatches = iter(loader)
        next(minibatches)
        (worker,) = loader.rewritten().find(Workers)[0].processes()
        os.kill(worker, signal.SIGKILL)
        assert len(list(minibatches)) == len(loader) - 1
        assert loader.stats()["workers"]["deaths"] == 1
        loader.report(tmp_path / "report.html")
    assert "made again" in (tmp_path / "report.html").read_text()


def test_a_report_before_an_epoch_or_during_one_is_refused(loader, tmp_path, refuses):
    refuses(RuntimeError, loader.report, tmp_path / "report.html")
    minibatches = iter(loader)
    next(minibatches)
    refuses(RuntimeError, loader.report, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    list(minibatches)
    loader.report(tmp_path / "report.html")
    with pytest.raises(FileNotFoundError):
        loader.report(tmp_path / "nowhere" / "report.html")


@pytest.mark.parametrize("how", ["break", "error of the loop", "error of a stage", "zip"])
def test_an_epoch_that_was_broken_off_has_a_report(tmp_path, how):
    def fails(minibatch):
        if how == "error of a stage" and minibatch.index == 3:
            raise KeyError("wrong")
        return minibatch

    with dp.DataLoader(fetched(sampled(items(60))).transform(fails)) as loader:
        with contextlib.suppress(KeyError):
            for minibatch, _ in zip(loader, range(3), strict=False) if how == "zip" else ((each, 0) for each in loader):
                if how == "error of the loop":
                    raise KeyError
                if how == "break" and minibatch.index == 2:
                    break
        loader.report(tmp_path / "report.html")
    loader.report(tmp_path / "closed.html")


def test_a_chain_behind_a_loader_counts_the_waits_for_it(tmp_path):
    with dp.DataLoader(dp.DataLoader(sampled(items(60))).transform(lambda minibatch: minibatch)) as loader:
        list(loader)
        assert loader.stats()["data_loader"]["calls"] == len(loader)
        loader.report(tmp_path / "report.html")


def test_a_report_replaces_an_older_one_whole_or_not_at_all(loader, tmp_path, monkeypatch):
    list(loader)
    path = tmp_path / "report.html"
    path.write_text("older")
    monkeypatch.setattr(os, "replace", lambda *given: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        loader.report(path)
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("report.html", "older")]
    with pytest.raises(OSError, match="No space"):
        loader.report("/dev/full")


def counts(trace):
    return trace["datapipes"]["stats"]["consumer"]


def other(trace, change):
    change(trace)
    return json.dumps(trace)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (lambda trace: json.dumps(trace)[:-30], "is not valid JSON; it may be cut off"),
        (lambda trace: "[" * 100_000, "is not valid JSON"),
        (lambda trace: "[]", "has no key 'datapipes'"),
        (lambda trace: '{"traceEvents": []}', "has no key 'datapipes'"),
        (lambda trace: other(trace, lambda t: t["datapipes"].update(version=VERSION + 1)), "version 2; this release"),
        (lambda trace: other(trace, lambda t: t["datapipes"].pop("stats")), "not a whole trace: KeyError"),
        (lambda trace: other(trace, lambda t: t["datapipes"].update(stats=[])), "not a whole trace: ValueError"),
        (lambda trace: other(trace, lambda t: counts(t).update(calls=0)), "the counts .*consumer"),
        (lambda trace: other(trace, lambda t: counts(t).update(calls=-1)), "the counts"),
        (lambda trace: other(trace, lambda t: counts(t).pop("seconds")), "the counts"),
        (lambda trace: other(trace, lambda t: t["traceEvents"].pop()), "not a whole trace: KeyError"),
        (lambda trace: other(trace, lambda t: t["traceEvents"][0].update(ts="soon")), "not a whole trace: ValueError"),
        (lambda trace: other(trace, lambda t: t["traceEvents"][0].update(name=[])), "not a whole trace: ValueError"),
        (lambda trace: json.dumps(trace).replace('"minibatch": 0', '"minibatch": 1e999'), "is not valid JSON"),
    ],
)
def test_a_trace_that_is_no_whole_one_is_refused(loader, tmp_path, text, found):
    list(loader)
    path = tmp_path / "trace.json"
    loader.trace(path)
    path.write_text(text(json.loads(path.read_text())))
    with pytest.raises(ValueError, match=f"^trace .*{found}.* Write it again"):
        read_trace(path)


def test_the_processor_time_of_a_call_is_counted():
    clock, began = StageClock(), time.monotonic()
    before, spent = clock.at_begin(began), time.thread_time()
    sum(range(100_000))
    spent = time.thread_time() - spent
    clock.add("computes", began, 0, before)
    clock.add("is awaited", began, 1)
    computes, awaited = clock.last_calls()
    assert spent <= computes.processor_seconds == clock.stats()["computes"]["processor_seconds"]
    assert awaited.processor_seconds == 0


@pytest.mark.parametrize(("gap", "looks"), [(GAP_S / 2, False), (GAP_S * 2, True)], ids=["at once", "after a wait"])
@pytest.mark.parametrize(("took", "used"), [(GAP_S * 2, 1.0), (GAP_S / 2, GAP_S / 2)], ids=["short", "shortest"])
def test_a_shortest_call_and_one_that_follows_another_at_once_need_no_look_at_their_thread(
    monkeypatch, gap, looks, took, used
):
    now, spent = 1000.0, itertools.count()
    fake = types.SimpleNamespace(monotonic=lambda: now + took, thread_time=lambda: float(next(spent)))
    monkeypatch.setattr("datapipes.base.clock.time", fake)
    clock = StageClock()
    with ThreadPoolExecutor(1) as thread:  # what it remembers of the time made up here ends with it
        first = thread.submit(clock.at_begin, now).result()
        thread.submit(clock.add, "computes", now, 0, first).result()
        second = thread.submit(clock.at_begin, now + took + gap).result()
    assert clock.last_calls()[0].processor_seconds == pytest.approx(used, rel=1e-6)
    assert second == pytest.approx(next(spent) - 1 if looks else first + used + gap, rel=1e-6)


def test_what_a_notebook_shows_of_a_chain_needs_no_epoch():
    chain = sampled(items(60))
    assert "1 sample_neighbor" in Page(dp.DataLoader(chain)._repr_html_()).text
