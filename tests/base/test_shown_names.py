"""ShownNames: `dir` and `help` of public classes show what users may touch."""

import inspect
import pydoc

import pytest
from pipelines import fetched

import datapipes as dp
from datapipes.base.shown_names import ShownNames
from datapipes.compat.other_names import OtherName

CLASSES = {
    each.__name__: each
    for module in (dp, dp.datasets, dp.distributed)
    for each in map(vars(module).get, module.__all__)
    if isinstance(each, ShownNames)
}


def raising(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name, found in vars(base).items() if isinstance(found, OtherName)}


def hidden(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name in vars(base).get("_hidden", ())}


@pytest.mark.parametrize("name", CLASSES)
def test_names_that_users_do_not_touch_are_found_and_not_shown(name):
    cls = CLASSES[name]
    assert not {*dir(cls)} & (hidden(cls) | raising(cls))
    helped = pydoc.plain(pydoc.render_doc(cls))
    for left_out in raising(cls):
        assert f" {left_out} = <datapipes" not in helped
    for base in cls.__mro__:
        for left_out in vars(base).get("_hidden", ()):
            known = [inspect.getattr_static(each, left_out, None) for each in (base, *base.__subclasses__())]
            assert any(found is not None for found in known) or left_out in inspect.getsource(base)


def test_an_instance_shows_what_its_class_shows_and_its_own_attributes():
    pipe = fetched()
    shown = {*dir(pipe)}
    assert {"feature_store", "explain", "sample_neighbor", "state_dict"} <= shown
    assert not shown & (hidden(type(pipe)) | raising(type(pipe)))
    minibatch = next(iter(pipe))
    assert {"seeds", "blocks", "node_features", "to_pyg"} <= {*dir(minibatch)}
    assert not {*dir(minibatch)} & raising(dp.MiniBatch)
    assert len(CLASSES) > 25


def test_a_class_of_a_user_shows_its_own_names():
    class Mine(dp.MiniBatchTransformer):
        mine = 1

        def transform(self, minibatch):
            return minibatch

    assert {"mine", "transform"} <= {*dir(Mine)} & {*dir(Mine(fetched()))}
