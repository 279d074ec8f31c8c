"""The gather of rows by a GPU's threads equals indexing, to the bit, for every width, dtype and way to lie in memory.

Without a GPU the kernels are run by Triton's interpreter, over memory of the CPU.
"""

import pytest
import torch
from plain_cuda import Place

from datapipes.device.gather import gather

WIDTHS = [
    *range(1, 34),
    48,
    63,
    64,
    65,
    100,
    128,
    200,
    256,
    400,
    401,
    404,
    408,
    512,
    1000,
    1024,
    2048,
    4000,
    4095,
    4096,
]


def random_rows(count: int, row_bytes: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, row_bytes), dtype=torch.uint8, generator=generator)


def random_ids(count: int, n: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, count, (n,), dtype=dtype, generator=torch.Generator().manual_seed(seed))


def twin(rows: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return the rows at ids, zeros for an id that has none: the slow and obvious."""
    found = torch.zeros((len(ids), *rows.shape[1:]), dtype=rows.dtype)
    for i, id_ in enumerate(ids.tolist()):
        if 0 <= id_ < len(rows):
            found[i] = rows[id_]
    return found


def bits(rows: torch.Tensor) -> list[int]:
    return rows.cpu().contiguous().reshape(-1).view(torch.uint8).tolist() if rows.numel() else []


@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_every_width_equal_indexing(place: Place, width, where):
    rows = random_rows(11, width)
    ids = random_ids(11, 9, torch.int64 if width % 2 else torch.int32)
    missing = place.missing(11)
    got = gather(place.table(rows, where), ids.to(place.device), missing=missing)
    assert got.shape == (9, width)
    assert bits(got) == bits(rows[ids.long()])
    missing.finish()
