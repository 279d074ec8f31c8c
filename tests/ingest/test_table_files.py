"""Tables that are damaged, that cannot be read, and whose rows are in the order of their ids."""

import errno
import gzip
import io
import random

import numpy as np
import pytest
from amounts import amount

from datapipes.ingest.table_files import TableFiles

pyarrow = pytest.importorskip("pyarrow", reason="tables need pyarrow")
COLUMNS = {"src": np.arange(200) * 7 % 30, "w": np.arange(200) / 8}


def contents():
    """Return {suffix and form: bytes} of one table in many forms."""
    parquet, arrow_csv = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow.csv")
    table, found = pyarrow.table(COLUMNS), {}
    for compression in ("none", "snappy", "gzip", "zstd", "lz4"):
        for encodes in (True, False):
            file = io.BytesIO()
            parquet.write_table(table, file, compression=compression, use_dictionary=encodes, row_group_size=70)
            found[f"{compression} {encodes}.parquet"] = file.getvalue()
    file = io.BytesIO()
    arrow_csv.write_csv(table, file)
    return {**found, "plain.csv": file.getvalue(), "packed.csv.gz": gzip.compress(file.getvalue(), mtime=0)}


def damaged(content, draw):
    """Return bytes that were cut, changed, lost or added, often near the end, where Parquet has its facts."""
    place = draw.randrange(len(content)) if draw.random() < 0.5 else len(content) - draw.randint(1, 600)
    place, count = max(place, 0), draw.randint(1, 20)
    before, after = content[:place], content[place:]
    return draw.choice(
        [
            before,
            before + after[count:],
            before + draw.randbytes(count) + after,
            before + draw.randbytes(count) + after[count:],
            before + bytes([after[0] ^ 1 << draw.randrange(8)]) + after[1:],
        ]
    )


def outcome_of(path):
    """Read all columns of a table; return the text of the error that it is refused by."""
    try:
        table = TableFiles("open", path)
        for name in table.names:
            assert table.numbers(name).shape == (table.num_rows,)
    except (ValueError, MemoryError) as error:  # a damaged Parquet file may name any size
        return str(error)
    return ""


def test_a_damaged_table_is_read_or_refused_by_a_typed_error(tmp_path):
    draw, forms, refusals = random.Random(0), contents(), 0
    for number in range(amount(3000, 60)):
        form = draw.choice([*forms])
        path = tmp_path / f"{number}.{form.partition('.')[2]}"
        path.write_bytes(damaged(forms[form], draw))
        outcome = outcome_of(path)
        refusals += outcome != ""
        assert outcome == "" or outcome.startswith(("open: ", "found ")), outcome
        path.unlink()
    assert refusals > number // 2


def test_a_file_that_cannot_be_read_is_an_error_of_the_disk(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [tmp_path / f"{name}.parquet" for name in "ab"]
    for path in paths:
        parquet.write_table(pyarrow.table(COLUMNS), path)
    table = TableFiles("open", tmp_path, paths, ".parquet")
    paths[1].unlink()
    for read in (lambda: table.numbers("w"), lambda: TableFiles("open", paths[1])):
        with pytest.raises(FileNotFoundError, match=r"open: the table cannot be read.*b.parquet") as caught:
            read()
        assert caught.value.errno == errno.ENOENT


def test_rows_are_sorted_by_a_column_of_ids(tmp_path):
    (tmp_path / "a.csv").write_text("id,w,split\n2,0.5,train\n0,,test\n1,2,\n")
    table = TableFiles("open", tmp_path / "a.csv")
    table.sort_by("id")
    assert table.numbers("id").tolist() == [0, 1, 2]
    assert table.numbers("w", missing=-1).tolist() == [-1, 2, 0.5]
    assert table.texts("split") == ["test", "", "train"]


def test_other_numbers_are_no_ids(tmp_path, refuses):
    for ids in ("0\n2\n", "1\n1\n", "0\n0.5\n"):
        (tmp_path / "a.csv").write_text(f"id\n{ids}")
        refuses(ValueError, TableFiles("open", tmp_path / "a.csv").sort_by, "id")
