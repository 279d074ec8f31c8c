"""The cap of GPU threads belongs to a thread and ends with its context."""

import threading

from datapipes.device.uva_threads import MAX_UVA_THREADS, limit, limited_to


def test_a_cap_holds_in_its_context_and_contexts_nest():
    assert limit() == MAX_UVA_THREADS == 10240
    with limited_to(512):
        with limited_to(64):
            assert limit() == 64
        assert limit() == 512
    assert limit() == MAX_UVA_THREADS


def test_a_cap_ends_with_an_error():
    try:
        with limited_to(512):
            raise KeyError
    except KeyError:
        assert limit() == MAX_UVA_THREADS


def test_a_cap_does_not_reach_other_threads():
    seen: list[int] = []
    with limited_to(512):
        thread = threading.Thread(target=lambda: seen.append(limit()))
        thread.start()
        thread.join(timeout=30)
    assert seen == [MAX_UVA_THREADS]
