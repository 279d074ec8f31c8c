"""What docs/errors.md says: every error is named, and what it carries. Its table of faults is played in
tests/distributed/test_fault_table.py.
"""

from pathlib import Path

import pytest
from pipelines import items

import datapipes as dp

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
ERRORS = {
    f"{space.__name__.replace('datapipes', 'dp')}.{name}": getattr(space, name)
    for space in (dp, dp.datasets)
    for name in dir(space)
    if isinstance(getattr(space, name), type) and issubclass(getattr(space, name), Exception)
}


@pytest.mark.parametrize("name", ERRORS)
def test_the_page_names_every_error_with_its_attributes_and_bases(name):
    error = ERRORS[name]
    lines = [line for line in PAGE.splitlines() if f"`{name}`" in line]
    assert lines
    public = [attribute for attribute in ("pids", "epoch") if f"{attribute}:" in (error.__doc__ or "")]
    assert all(any(f"`{attribute}`" in line for line in lines) for attribute in public)
    if error.__base__ in (TimeoutError, ValueError):
        assert any(f"`{name}`, a `{error.__base__.__name__}`" in line for line in lines)


def test_a_state_that_is_refused_leaves_the_loader_as_it_was():
    loader = items()
    iterator = iter(loader)
    assert next(iterator).index == 0
    other = items(batch_size=5)
    with pytest.raises(ValueError, match="another pipeline"):
        loader.load_state_dict(other.state_dict())
    assert next(iterator).index == 1
