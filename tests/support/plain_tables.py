"""The graph of tables by the plain definition, and random tables to compare with."""

import random


def random_tables(seed, num_customers=40, num_products=12, num_purchases=300):
    """Customers, products and purchases, as {table: {column: cells}}; some keys are missing, or lead nowhere."""
    drawn = random.Random(seed)
    customers = [f"c{number * 7}" for number in drawn.sample(range(1000), num_customers)]
    products = [number * 3 - 50 for number in drawn.sample(range(1000), num_products)]
    times = [drawn.randrange(1_700_000_000, 1_710_000_000) for _ in range(num_purchases)]
    return {
        "customers": {
            "name": [None if drawn.random() < 0.1 else name for name in customers],
            "age": [None if drawn.random() < 0.2 else drawn.randrange(18, 90) / 2 for _ in customers],
            "city": [drawn.choice(["Ulm", "Bonn", None, "Köln"]) for _ in customers],
        },
        "products": {"id": products, "price": [drawn.random() for _ in products]},
        "purchases": {
            "buyer": [drawn.choice([*customers, "nobody", None]) for _ in times],
            "product": [drawn.choice([*products, 10**6, None]) for _ in times],
            "shop": [drawn.choice(["north", "south", None, "east"]) for _ in times],
            "pieces": [drawn.randrange(5) for _ in times],
            "day": [None if drawn.random() < 0.1 else time for time in times],
        },
    }


ARGUMENTS = {
    "keys": {"customers": "name", "products": "id"},
    "links": {"purchases": {"buyer": "customers", "product": "products", "shop": "shops"}},
    "times": {"purchases": "day"},
    "features": {"customers": ["age", "city"]},
}


def plain_graph(tables, keys, links, times, edges=(), **_):
    """({node type: its ids}, {edge type: pairs}, {table: the rows that stay}); a table without a key has no ids."""
    nodes, pairs, kept = {}, {}, {}
    rows_of = {
        table: [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        for table, columns in tables.items()
    }
    for table, rows in rows_of.items():
        required = [by_table[table] for by_table in (keys, times) if table in by_table]
        kept[table] = [row for row in rows if all(row[column] is not None for column in required)]
        if table in keys:
            nodes[table] = [row[keys[table]] for row in kept[table]]
    for table, targets in links.items():
        stay = []
        for row in kept[table]:
            found = {
                column: row[column]
                for column, target in targets.items()
                if row[column] is not None and (target not in tables or row[column] in nodes[target])
            }
            if table in edges and len(found) < 2:
                continue
            ends = {}
            for column, value in found.items():
                ids = nodes.setdefault(targets[column], [])
                if value not in ids:
                    ids.append(value)
                ends[column] = ids.index(value)
            if table in edges:
                (first, second), (src, dst) = targets.values(), ends.values()
                triples = [((first, table, second), src, dst)]
            else:
                triples = [((table, f"f2p_{link}", targets[link]), len(stay), end) for link, end in ends.items()]
            for (src_type, relation, dst_type), src, dst in triples:
                pairs.setdefault((src_type, relation, dst_type), []).append((src, dst))
                pairs.setdefault((dst_type, f"rev_{relation}", src_type), []).append((dst, src))
            stay.append(row)
        kept[table] = stay
    return nodes, pairs, kept
