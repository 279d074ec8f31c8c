"""datapipes.distributed.pyg, where datapipes.pyg.distributed was before: one module under two names."""

import importlib
import pickle
import sys
import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyG warns about its own parts while it is imported
    pytest.importorskip("torch_geometric", reason="the stores derive from PyG's: install the pyg extra")


def test_a_module_that_has_moved_is_one_object_under_both_names():
    import datapipes.distributed.pyg
    from datapipes.distributed.pyg import LocalFeatureStore
    from datapipes.distributed.pyg.stores import LocalGraphStore

    from datapipes.pyg import distributed

    assert datapipes.distributed.pyg is distributed
    assert sys.modules["datapipes.distributed.pyg"] is distributed
    assert distributed.__name__ == "datapipes.pyg.distributed"
    assert (LocalFeatureStore, LocalGraphStore) == (distributed.LocalFeatureStore, distributed.LocalGraphStore)
    assert isinstance(LocalFeatureStore(), distributed.LocalFeatureStore)


def test_what_was_pickled_under_the_old_name_can_be_read():
    from datapipes.pyg.distributed import LocalFeatureStore

    old = pickle.dumps(LocalFeatureStore).replace(
        b"datapipes.pyg.distributed.stores", b"datapipes.distributed.pyg.stores"
    )
    assert b"datapipes.distributed.pyg.stores" in old
    assert pickle.loads(old) is LocalFeatureStore


def test_a_module_that_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"datapipes\.pyg\.distributed\.nothing"):
        importlib.import_module("datapipes.distributed.pyg.nothing")
