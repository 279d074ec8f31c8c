"""`dir` of instances and `help` of public classes show what users may touch."""

import inspect
import pydoc

import pytest
from pipelines import fetched

import datapipes as dp
from datapipes.compat.other_names import OtherName

CLASSES = {
    name: value
    for module in (dp, dp.datasets, dp.distributed)
    for name, value in ((name, getattr(module, name)) for name in module.__all__)
    if inspect.isclass(value) and not issubclass(value, BaseException)
}


def raising(cls: type) -> set[str]:
    return {name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, OtherName)}


@pytest.mark.parametrize("name", CLASSES)
def test_help_of_a_class_says_what_a_name_of_another_library_is_here(name):
    cls = CLASSES[name]
    text = pydoc.plain(pydoc.render_doc(cls))
    assert "OtherName object" not in text
    for other in raising(cls):
        assert f"    {other} = <" not in text or f"    {other} = <not here: " in text


def test_an_instance_shows_its_own_attributes_and_no_names_of_other_libraries():
    pipe = fetched()
    shown = {*dir(pipe)}
    assert {"feature_store", "explain", "sample_neighbor", "state_dict"} <= shown
    assert raising(type(pipe))
    assert not shown & raising(type(pipe))
    minibatch = next(iter(pipe))
    assert {"seeds", "blocks", "node_features", "to_pyg"} <= {*dir(minibatch)}
    assert raising(dp.MiniBatch)
    assert not {*dir(minibatch)} & raising(dp.MiniBatch)
    assert len(CLASSES) > 25


def test_a_class_of_a_user_shows_its_own_names():
    class Mine(dp.MiniBatchTransformer):
        mine = 1

        def transform(self, minibatch):
            return minibatch

    assert {"mine", "transform"} <= {*dir(Mine)} & {*dir(Mine(fetched()))}
