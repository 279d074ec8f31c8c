"""A folder as RelBench publishes its data, with a task of each kind."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet

START, DAY = datetime.datetime(2024, 1, 1), datetime.timedelta(days=1)
VALIDATION, TEST, END = 60, 80, 100  # days
NUM_CUSTOMERS, NUM_PRODUCTS, NUM_PURCHASES = 30, 8, 400

MANIFEST = f"""
name: rel-shop
manifest_version: 1
description: made
val_timestamp: '{START + VALIDATION * DAY:%Y-%m-%d}'
test_timestamp: '{START + TEST * DAY:%Y-%m-%d}'
tables:
  customers: {{pkey: id, time_col: null, fkeys: {{}}}}
  products: {{pkey: id, time_col: null, fkeys: {{}}}}
  purchases: {{pkey: id, time_col: at, fkeys: {{customer: customers, product: products}}}}
  visits: {{pkey: null, time_col: at, fkeys: {{customer: customers}}}}
"""

ENTITY = "kind: forecast\nentity_table: customers\nentity_col: customer\ntime_col: timestamp\ntimedelta: 10 days\n"
LINKS = """src_entity_table: customers
src_entity_col: customer
dst_entity_table: products
dst_entity_col: product
time_col: timestamp
timedelta: 10 days
eval_k: 3
sql: SELECT 1
"""
TASKS = {
    "churn": f"{ENTITY}task_type: binary_classification\ntarget_col: churn\nsql: |\n  SELECT 1\n  FROM x\n",
    "spent": f"{ENTITY}task_type: regression\ntarget_col: spent\nsql: x\nremove_columns: [[customers, income]]\n",
    "tags": f"{ENTITY}task_type: multilabel_classification\ntarget_col: tags\nsql: SELECT 1\n",
    "next": f"kind: forecast\ntask_type: recommendation\n{LINKS}",
    "pieces": "kind: autocomplete\ntask_type: regression\nentity_table: purchases\ntarget_col: pieces\n",
    "shop": "kind: autocomplete\ntask_type: multiclass_classification\nentity_table: purchases\ntarget_col: shop\n",
}


def _days(days):
    return pa.array([None if day is None else START + float(day) * DAY for day in days], pa.timestamp("ns"))


def database(seed=0):
    """{table: a table of pyarrow}; purchases and visits ascend in time, and some are after the test time."""
    drawn = np.random.default_rng(seed)
    at = np.sort(drawn.random(NUM_PURCHASES)) * END
    buyers = drawn.integers(0, NUM_CUSTOMERS, NUM_PURCHASES)
    products = [None if drawn.random() < 0.05 else int(drawn.integers(0, NUM_PRODUCTS)) for _ in at]
    return {
        "customers": pa.table({"id": np.arange(NUM_CUSTOMERS), "income": drawn.random(NUM_CUSTOMERS)}),
        "products": pa.table({"id": np.arange(NUM_PRODUCTS), "price": drawn.random(NUM_PRODUCTS)}),
        "purchases": pa.table(
            {
                "id": np.arange(NUM_PURCHASES),
                "customer": buyers,
                "product": pa.array(products, pa.int64()),
                "pieces": drawn.integers(1, 9, NUM_PURCHASES),
                "shop": drawn.integers(0, 3, NUM_PURCHASES),
                "at": _days(at),
            }
        ),
        "visits": pa.table({"customer": buyers[::2], "length": drawn.random(len(at[::2])), "at": _days(at[::2])}),
    }


def labels(task, part, seed=0):
    """The table of one part of a task."""
    tables, drawn = database(seed), np.random.default_rng([seed, sorted(TASKS).index(task), len(part)])
    begin, end = {"train": (20, VALIDATION), "val": (VALIDATION, TEST), "test": (TEST, END)}[part]
    if task in ("pieces", "shop"):
        purchases = tables["purchases"]
        days = (purchases["at"].to_numpy() - np.datetime64(START)) / np.timedelta64(1, "D")
        mask = (days <= end) & (days > (begin if part != "train" else -1))
        return purchases.select(["at", "id", task]).filter(pa.array(mask))
    days = np.repeat(np.arange(begin, end, 10), NUM_CUSTOMERS)
    count = len(days)
    columns = {"timestamp": _days(days), "customer": np.tile(np.arange(NUM_CUSTOMERS), count // NUM_CUSTOMERS)}
    if task == "next":
        lists = [sorted({*map(int, drawn.integers(0, NUM_PRODUCTS, drawn.integers(1, 5)))}) for _ in range(count)]
        return pa.table({**columns, "product": pa.array(lists, pa.list_(pa.int64()))})
    if task == "tags":
        return pa.table({**columns, task: pa.array(drawn.integers(0, 2, (count, 4)).tolist(), pa.list_(pa.int64()))})
    values = drawn.integers(0, 2, count) if task == "churn" else drawn.random(count)
    return pa.table({**columns, task: values})


def write_relbench(folder, tasks=tuple(TASKS), seed=0):
    """Write the folder, and return it."""
    (folder / "db").mkdir(parents=True)
    (folder / "manifest.yaml").write_text(MANIFEST)
    for name, table in database(seed).items():
        pa.parquet.write_table(table, folder / "db" / f"{name}.parquet")
    for task in tasks:
        (folder / "tasks" / task).mkdir(parents=True)
        (folder / "tasks" / task / "manifest.yaml").write_text(f"name: {task}\nmanifest_version: 1\n{TASKS[task]}")
        for part in ("train", "val", "test"):
            pa.parquet.write_table(labels(task, part, seed), folder / "tasks" / task / f"{part}.parquet")
    return folder
