"""The arguments of `datasets.from_tables`, checked against the tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from datapipes.base.checks import check_bool, check_choice, shown
from datapipes.base.types import EdgeType, check_edge_type, check_node_type
from datapipes.ingest.columns import KINDS, UNITS, Kind, kind_of
from datapipes.ingest.ids import words_of
from datapipes.ingest.table_files import TableFiles
from datapipes.ingest.tables import Tables

WHERE = "datasets.from_tables"
TIME = "time"  # the attribute and feature with the times of rows


class Plan:
    """What each table becomes.

    Args:
        opened: the tables, and the keys and links that their database states.
        types: False makes a graph without types.
        hidden: {(table, column)}, columns that are not read.
        until: the last time of rows that are read; None: all.
        arguments: keys, times, labels, split, links, edges and features, as `from_tables` gets them; see there. `split`
            is None here if `from_tables` got two times.
    Attributes:
        keys, times, labels, split: {table: column}.
        links: {table: {column: node type}}.
        edges: the tables whose rows are edges.
        features: {table: {column: kind}}.
        left_out: {(table, column): why it is not in the data set}; the reader adds to it.
    """

    def __init__(
        self,
        opened: Tables,
        time_unit: str,
        dangling: str,
        types: bool = True,
        hidden: Collection[tuple[str, str]] = (),
        until: Any = None,
        **arguments: Any,
    ) -> None:
        self.tables, self._hidden, self.until = opened.tables, hidden, until
        self.time_unit = check_choice(WHERE, "time_unit", time_unit, [*UNITS])
        self.refuses = check_choice(WHERE, "dangling", dangling, ("drop", "refuse")) == "refuse"
        self.left_out: dict[tuple[str, str], str] = {}
        self.keys = self._columns("keys", arguments["keys"], opened.keys)
        self.times = self._columns("times", arguments["times"], opened.times)
        self.labels, self.split = (self._columns(name, arguments[name]) for name in ("labels", "split"))
        links = self._links({**opened.links, **self._by_table("links", arguments["links"])})
        self.links = {
            table: {column: target for column, target in targets.items() if (table, column) not in hidden}
            for table, targets in links.items()
        }
        self.left_out.update(dict.fromkeys(sorted(hidden), "a task must not see it"))
        self.left_out.update(opened.left_out)
        self.edges = self._edges(arguments["edges"])
        self._types = check_bool(WHERE, "types", types)
        node_types = {table for table in self.tables if table not in self.edges}
        node_types |= {target for targets in self.links.values() for target in targets.values()}
        if not types and (len(node_types), len(self.edges), len(self.links)) != (1, 1, 1):
            raise ValueError(
                f"{WHERE}: types=False is for one table in edges whose links refer to one type of nodes; found the "
                f"edges {shown([*self.edges])} and the types {shown(sorted(node_types))}. Leave it out."
            )
        if len({table in self.edges for table in self.labels}) > 1:
            raise ValueError(
                f"{WHERE}: labels names tables of nodes and of edges; a task has one kind. Leave some out."
            )
        for table in self.split:
            if table not in (self.labels or self.edges):
                raise ValueError(
                    f"{WHERE}: split names the table {table!r}, whose rows are no seeds; seeds are the rows of "
                    f"{shown([*(self.labels or self.edges)])}. Leave {table!r} out, or pass labels for it."
                )
        given = self._by_table("features", arguments["features"])
        self.features = {
            table: self._given_features(table, given[table]) if table in given else self._default_features(table)
            for table in self.tables
        }

    def node_type(self, name: str) -> str | None:
        """Return the node type of a table or a target of links in the graph; None in a graph without types."""
        return name if self._types else None

    def edge_types(self, table: str) -> dict[str, tuple[EdgeType | None, ...]]:
        """Return {link: (edge type, the type of its reverses)}; for a table of edges, its first link alone. A graph
        without types has no reverses: {link: (None,)}.
        """
        if not self._types and table in self.edges:
            return {next(iter(self.links[table])): (None,)}
        links = self.links.get(table, {})
        if table in self.edges:
            first, second = links.values()
            triples = {next(iter(links)): (first, table, second)}
        else:
            triples = {link: (table, f"f2p_{link}", target) for link, target in links.items()}
        return {
            link: (check_edge_type(WHERE, (src, relation, dst)), (dst, f"rev_{relation}", src))
            for link, (src, relation, dst) in triples.items()
        }

    def note(self, table: str, column: str, why: str, count: int) -> None:
        """Add to `left_out` that `count` rows or values of a column are left out; nothing if there are none."""
        if count and why not in (before := self.left_out.get((table, column), "")):
            self.left_out[table, column] = f"{before}{'; ' * bool(before)}{why}: {count}"

    def title(self, table: str, column: str) -> str:
        """Return how an error about a column begins."""
        return f"{WHERE}: the column {column!r} of {self.called(table)}"

    def called(self, table: str) -> str:
        """Return the name of a table for errors, with its file if it has one."""
        content = self.tables.get(table)
        return f"the table {table!r}" + (f" ({content.path})" if isinstance(content, TableFiles) else "")

    def _columns(self, argument: str, value: Any, stated: Mapping[str, str] | None = None) -> dict[str, str]:
        checked = {**(stated or {}), **self._by_table(argument, value)}
        for table, column in checked.items():
            self._check_column(argument, table, column)
        return checked

    def _links(self, links: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        for table, targets in links.items():
            if not isinstance(targets, Mapping):
                raise TypeError(
                    f"{WHERE}: links[{table!r}] must be {{column: table}}, got {shown(targets)}. Pass a dict."
                )
            for column, target in targets.items():
                self._check_column("links", table, column)
                check_node_type(WHERE, target)
                close = [one for one in self.tables if _singular(one) == _singular(target)]
                if close and target not in self.tables:
                    raise ValueError(
                        f"{WHERE}: links[{table!r}] refers to {target!r}, which is no table; there is {close[0]!r}. "
                        "Name that, or give the type of nodes another name."
                    )
                if target in self.tables and target not in self.keys:
                    raise ValueError(
                        f"{WHERE}: links[{table!r}] refers to the table {target!r}, whose key is not known. Pass "
                        f"keys={{{target!r}: column}}, one of {shown(self.tables[target].names)}."
                    )
        return {table: dict(targets) for table, targets in links.items()}

    def _edges(self, value: Any) -> tuple[str, ...]:
        tables = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (None,)
        if not all(isinstance(table, str) for table in tables):
            raise TypeError(f"{WHERE}: edges must be names of tables, got {shown(value)}. Pass a list of them.")
        targets = {target for columns in self.links.values() for target in columns.values()}
        for table in tables:
            self._check_table("edges", table)
            count = len(self.links.get(table, {}))
            if count != 2:
                raise ValueError(
                    f"{WHERE}: the table {table!r} in edges has {count} links, must have two: its source and its "
                    f"destination. Pass links={{{table!r}: {{column: table, column: table}}}}."
                )
            if table in targets:
                raise ValueError(f"{WHERE}: a link refers to {table!r}, whose rows are edges. Leave it out of edges.")
        return tables

    def _default_features(self, table: str) -> dict[str, Kind]:
        content, kinds = self.tables[table], dict[str, Kind]()
        used = {by_table.get(table) for by_table in (self.keys, self.times, self.labels, self.split)}
        for column in content.names:
            kind = kind_of(content.arrow_type(column))
            if column in used or column in self.links.get(table, {}) or (table, column) in self._hidden:
                continue
            if kind is None:
                how = "name it in features to read it as a category, or as a link, a time or a label"
                self.left_out.setdefault((table, column), f"it holds {words_of(content.arrow_type(column))}; {how}")
            elif column == TIME and table in self.times:
                self.left_out[table, column] = f"the feature of this name holds the times of {self.times[table]!r}"
            else:
                kinds[column] = kind
        return kinds

    def _given_features(self, table: str, columns: Any) -> dict[str, Kind]:
        if isinstance(columns, str) or not isinstance(columns, Iterable):
            raise TypeError(f"{WHERE}: features[{table!r}] must be columns, got {shown(columns)}. Pass a list.")
        kinds: dict[str, Kind] = {}
        for column in columns:
            self._check_column("features", table, column)
            if (table, column) in self._hidden:
                raise ValueError(
                    f"{WHERE}: features[{table!r}] names {column!r}, which a task must not see. Leave it out, or name "
                    "another task."
                )
            kind: Kind = kind_of(self.tables[table].arrow_type(column)) or "category"
            if isinstance(columns, Mapping):
                kind = columns[column]
            if not callable(kind):
                check_choice(WHERE, f"features[{table!r}][{column!r}]", kind, KINDS)
            if column == self.labels.get(table):
                raise ValueError(
                    f"{WHERE}: features[{table!r}] names {column!r}, which holds labels. Leave it out of features."
                )
            if column == TIME and table in self.times:
                raise ValueError(
                    f"{WHERE}: features[{table!r}] has {TIME!r}, the feature that holds the times of the column "
                    f"{self.times[table]!r}. Leave it out, or rename the column."
                )
            kinds[column] = kind
        return kinds

    def _by_table(self, argument: str, value: Any) -> dict[str, Any]:
        if value is not None and not isinstance(value, Mapping):
            raise TypeError(f"{WHERE}: {argument} must be a dict by table, got {shown(value)}. Pass {{table: ...}}.")
        for table in value or {}:
            self._check_table(argument, table)
        return dict(value or {})

    def _check_table(self, argument: str, table: Any) -> None:
        if table not in self.tables:
            raise ValueError(
                f"{WHERE}: {argument} names the table {shown(table)}; the tables are {shown([*self.tables])}. Name one "
                "of these."
            )

    def _check_column(self, argument: str, table: str, column: Any) -> None:
        if column not in self.tables[table].names:
            raise ValueError(
                f"{WHERE}: {argument} names the column {shown(column)} of {self.called(table)}, which has "
                f"{shown(self.tables[table].names)}. Name one of these."
            )


def _singular(name: str) -> str:
    """Return a name without case and a plural's s: with these alone, two names are most likely meant to be one."""
    return name.casefold().rstrip("s")
