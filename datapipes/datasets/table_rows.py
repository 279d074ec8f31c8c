"""Read the rows of tables that a Plan describes: the nodes that they refer to, their times, and their columns.

A row without a key, or without a time, is left out if its table has such a column; so is an edge that lacks an end.
The keys of all tables are numbered first, so each table is read once or twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipes.base.checks import shown
from datapipes.base.errors import needed
from datapipes.datasets.table_plan import WHERE, Plan
from datapipes.ingest.columns import Column, is_until, kind_of
from datapipes.ingest.ids import TEXTS, Ids, WrongCell, without_nan
from datapipes.ingest.pieces import Pieces
from datapipes.ingest.table_files import TableFiles
from datapipes.ingest.tables import Table

_AT_ONCE = 2**16  # rows of a batch
_NUMBER = "^(-?[1-9][0-9]*|0|)$"  # or an empty cell

Cells = dict[str, Any]  # {column: pyarrow array}


class Rows:
    """The rows of one table that stay.

    Attributes:
        count: their number.
        places: of a table without keys, the place of each row in the table.
        links: {link: (rows, nodes)}: the rows with a value, and the nodes that they refer to. For a table of edges,
            {its first link: (sources, destinations)}.
        columns: {column: values}, the features.
        times, labels, split: the columns with these; None if the table has none.
    """

    def __init__(self, plan: Plan, table: str, new_pieces: Callable[[], Pieces]) -> None:
        def column_of(by_table: Mapping[str, str], kind: str) -> Column | None:
            return Column(kind, plan.time_unit, new_pieces) if table in by_table else None

        self.count = 0
        self.places = None if table in plan.keys else new_pieces()
        self.links = {link: (new_pieces(), new_pieces()) for link in plan.edge_types(table)}
        kinds = plan.features[table]
        self.columns = {column: Column(kind, plan.time_unit, new_pieces) for column, kind in kinds.items()}
        self.times = column_of(plan.times, "time")
        label = plan.labels.get(table)
        is_number = label is not None and kind_of(plan.tables[table].arrow_type(label)) == "number"
        self.labels = column_of(plan.labels, "number" if is_number else "category")
        self.split = column_of(plan.split, "category")


class Reading:
    """Reads all tables of a Plan.

    Attributes:
        ids: {node type: the ids of its nodes}, for tables with keys, and for types that have no table.
        rows: {table: its Rows}.
    """

    def __init__(self, plan: Plan, new_pieces: Callable[[], Pieces]) -> None:
        self._plan = plan
        self.ids: dict[str, Ids] = {}
        self._settle_ids()
        for table in plan.keys:
            if table not in plan.edges:
                self._number_keys(table)
        for targets in plan.links.values():
            for target in targets.values():
                self.ids.setdefault(target, Ids())
        self.rows = {table: Rows(plan, table, new_pieces) for table in plan.tables}
        for table, rows in self.rows.items():
            self._read(table, rows)

    def _settle_ids(self) -> None:
        """Let ids of CSV files be read as texts, unless all of a node type are numbers: "007" and "7" are two texts."""
        plan = self._plan
        columns: dict[str, list[tuple[str, str]]] = {table: [(table, key)] for table, key in plan.keys.items()}
        for table, targets in plan.links.items():
            for link, target in targets.items():
                columns.setdefault(target, []).append((table, link))
        for of_type in columns.values():
            files = [(plan.tables[table], column) for table, column in of_type]
            in_csv = [(file, name) for file, name in files if isinstance(file, TableFiles) and file.is_csv]
            if any(_holds_text(file, name) for file, name in files) or not all(map(_are_numbers, in_csv)):
                for file, name in in_csv:
                    file.read_as_text(name)

    def num_nodes(self) -> dict[str, int]:
        """Return {node type: number of nodes}."""
        counts = {node_type: ids.count for node_type, ids in self.ids.items()}
        return counts | {table: rows.count for table, rows in self.rows.items() if table not in self._plan.edges}

    def _number_keys(self, table: str) -> None:
        plan = self._plan
        key, ids = plan.keys[table], self.ids.setdefault(table, Ids())
        for numbers_of_rows, cells in self._batches(table, [key]):
            new = np.arange(ids.count, ids.count + len(numbers_of_rows))
            with cell_errors(plan.called(table), [key], numbers_of_rows):
                is_again = ids.number([cells[key]], add=True)[0] != new
            if is_again.any():
                place = int(is_again.argmax())
                raise ValueError(
                    f"{WHERE}: row {numbers_of_rows[place] + 1} of {plan.called(table)} has the key "
                    f"{shown(cells[key][place].as_py())} of an earlier row; each value of {key!r} must occur once. "
                    "Remove one of the rows, or name another column in keys."
                )

    def _batches(self, table: str, columns: Iterable[str]) -> Iterator[tuple[NDArray[Any], Cells]]:
        """Yield (places in the table, cells) of the rows with a key and a time, if their table has such columns."""
        plan, place = self._plan, 0
        required = [plan.times[table]] if table in plan.times else []
        if table in plan.keys and table not in plan.edges:
            required.insert(0, plan.keys[table])
        late, lacking = 0, dict.fromkeys(required, 0)
        names = [*dict.fromkeys([*columns, *required])] or plan.tables[table].names[:1]  # one is read to count the rows
        for batch in plan.tables[table].batches(names, _AT_ONCE):
            cells = {name: _without_empty(batch.column(name)) for name in names}
            places = np.arange(place, place + batch.num_rows)
            place += batch.num_rows
            for name in required:
                lacking[name] += cells[name].null_count
                places, cells = _kept(places, cells, _valid(cells[name]))
            if plan.until is not None and table in plan.times:
                with cell_errors(plan.called(table), [plan.times[table]], places):
                    is_early = is_until(cells[plan.times[table]], plan.until, plan.time_unit)
                late += int((~is_early).sum())
                places, cells = _kept(places, cells, is_early)
            yield places, cells
        for name, count in lacking.items():
            plan.note(table, name, "rows without a value", count)
        if late:
            plan.note(table, plan.times[table], f"rows after {plan.until}", late)

    def _read(self, table: str, rows: Rows) -> None:
        plan = self._plan
        columns = {**plan.links.get(table, {}), **rows.columns}
        others = {by_table[table] for by_table in (plan.times, plan.labels, plan.split) if table in by_table}
        counts = dict.fromkeys(plan.links.get(table, {}), (0, 0))
        for places, cells in self._batches(table, [*columns, *others]):
            ends = self._ends(table, places, cells, counts)
            if table in plan.edges:
                has_both = np.logical_and(*(numbers >= 0 for numbers in ends.values()))
                places, cells = _kept(places, cells, has_both)
                for pieces, numbers in zip(*rows.links.values(), ends.values(), strict=True):
                    pieces.add(numbers[has_both])
            else:
                for link, (own, other) in rows.links.items():
                    has_end = ends[link] >= 0
                    own.add(np.flatnonzero(has_end) + rows.count)
                    other.add(ends[link][has_end])
            of_rows = ((plan.times, rows.times), (plan.labels, rows.labels), (plan.split, rows.split))
            collected = [*rows.columns.items(), *((names[table], column) for names, column in of_rows if column)]
            for name, column in collected:
                with cell_errors(plan.called(table), [name], places):
                    column.add(cells[name])
            rows.count += len(places)
            if rows.places is not None:
                rows.places.add(places)
        for link, (no_value, no_row) in counts.items():
            plan.note(table, link, "rows without a value", no_value)
            plan.note(table, link, f"values that are no key of {plan.links[table][link]}", no_row)

    def _ends(
        self, table: str, places: NDArray[Any], cells: Cells, counts: dict[str, tuple[int, int]]
    ) -> dict[str, NDArray[Any]]:
        """Return {link: the node that each row refers to, -1 for none}.

        Adds to `counts`: {link: (rows without a value, values that are no key)}. Nodes without a table get their
        numbers here; an edge that lacks its other end makes no node.
        """
        plan, ends = self._plan, {}
        links = plan.links.get(table, {})
        usable = np.ones(len(places), bool)  # as an edge
        for link, target in links.items():
            has_value = _valid(cells[link])
            no_row = np.zeros(len(places), bool)
            if target in plan.tables:
                with cell_errors(plan.called(table), [link], places):
                    ends[link] = self.ids[target].number([cells[link]], add=False)[0]
                no_row = has_value & (ends[link] < 0)
                if no_row.any() and plan.refuses:
                    place = int(no_row.argmax())
                    raise ValueError(
                        f"{WHERE}: row {places[place] + 1} of the column {link!r} of {plan.called(table)} has "
                        f"{shown(cells[link][place].as_py())}, which no row of {target!r} has as its key. Correct it, "
                        "or pass dangling='drop'."
                    )
            counts[link] = counts[link][0] + int((~has_value).sum()), counts[link][1] + int(no_row.sum())
            usable &= has_value & ~no_row
        if table not in plan.edges:
            usable[:] = True
        for target in dict.fromkeys(target for target in links.values() if target not in plan.tables):
            same = [link for link in links if links[link] == target]
            used_places, used = _kept(places, {link: cells[link] for link in same}, usable)
            with cell_errors(plan.called(table), same, used_places):
                numbers = self.ids[target].number([*used.values()], add=True)
            for link, of_link in zip(same, numbers, strict=True):
                ends[link] = np.full(len(places), -1)
                ends[link][usable] = of_link
        return {link: ends[link] for link in links}


def _holds_text(table: Table, column: str) -> bool:
    type_ = table.arrow_type(column)
    return str(getattr(type_, "value_type", type_)) in TEXTS  # a dictionary has a type of its values


def _are_numbers(file_and_column: tuple[TableFiles, str]) -> bool:
    """Return whether the ids in a column of a CSV file are numbers, each written as a number is."""
    file, column = file_and_column
    pyarrow, compute = (needed(name, "ondisk", WHERE) for name in ("pyarrow", "pyarrow.compute"))
    if not pyarrow.types.is_integer(file.arrow_type(column)):
        return not _holds_text(file, column)  # floats: pandas writes 7.0 where others of the column are missing
    file.read_as_text(column)
    cells = (batch.column(column) for batch in file.batches([column], _AT_ONCE))
    plain = all(compute.all(compute.match_substring_regex(some, _NUMBER)).as_py() is not False for some in cells)
    file.read_as_text(column, is_text=False)
    return plain


def _valid(cells: Any) -> NDArray[Any]:
    return np.asarray(cells.is_valid().to_numpy(zero_copy_only=False))


def _kept(places: NDArray[Any], cells: Cells, mask: NDArray[Any]) -> tuple[NDArray[Any], Cells]:
    if mask.all():
        return places, cells
    chosen = needed("pyarrow", "ondisk", WHERE).array(mask)
    return places[mask], {name: array.filter(chosen) for name, array in cells.items()}


def _without_empty(cells: Any) -> Any:
    """Return a pyarrow array with null in place of each empty text and each NaN."""
    pyarrow, compute = (needed(name, "ondisk", WHERE) for name in ("pyarrow", "pyarrow.compute"))
    is_dictionary = pyarrow.types.is_dictionary(cells.type)
    if str(cells.type.value_type if is_dictionary else cells.type) in TEXTS:
        cells = cells.cast(pyarrow.large_string())
        return compute.if_else(compute.equal(cells, ""), None, cells)
    return without_nan(cells) if pyarrow.types.is_floating(cells.type) else cells


@contextlib.contextmanager
def cell_errors(called: str, columns: Sequence[str], places: NDArray[Any]) -> Iterator[None]:
    """In a with statement, let an error about a cell name its table, column and row, which counts from 1.

    `called` is the name of the table for errors.
    """
    subject = f"the column {' or '.join(map(repr, columns))} of {called}"
    try:
        yield
    except WrongCell as error:
        row = "" if error.row is None else f"row {places[error.row] + 1} of "
        raise ValueError(f"{WHERE}: {row}{subject} {error}") from error
