"""Serve a data set to trainers: this process has the graph and the features, and makes their minibatches.

Run: python examples/serving/serve.py [--data debian | FOLDER] --seeds FILE --namebook FILE [--rank K]

Writes what trainers need: `--seeds`, the nodes of the split with their labels, and its own address into `--namebook`,
under `--rank`, beside those of other servers. Then serves until SIGTERM or Ctrl-C. Start as many as you like on the
same data: trainers ask all of them in turn, and the others make the share of one that is gone. From a shell, without a
program, a saved graph is served by `datapipes serve GRAPH --chains --features feat`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import signal
import sys
import threading
from pathlib import Path

import torch

import datapipes as dp
from datapipes.distributed import PartitionServer

sys.path.insert(0, str(Path(__file__).parents[1]))
from training import node_keys, row_width


def main() -> None:
    args = parse_arguments()
    data = dp.datasets.debian_packages() if args.data == "debian" else dp.datasets.open(args.data, split=args.split)
    if data.graph.is_heterogeneous:
        raise ValueError("this example is for graphs without types; with types the chain is the same, with dicts.")
    key = node_keys(data)[None]
    rows = data.features["node", None, key].read(torch.arange(data.graph.num_nodes))
    relation = data.graph.relation(None)
    graph = dp.CSCGraph(relation.indptr, relation.indices, edge_ids=relation.edge_ids, node_attributes={key: rows})
    sets = {"train": data.train_set, "validation": data.validation_set, "test": data.test_set}
    taken = {name: items.take(torch.arange(len(items))) for name, items in sets.items()}
    about = {"num_classes": data.num_classes, "key": key, "width": row_width(data)}
    torch.save({"about": about, "sets": taken}, args.seeds)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with PartitionServer(graph, address=args.address, chains=True, features=[key]) as server:
        enter(args.namebook, args.rank, server.address)
        print(f"server {args.rank} of {data.name} listens on {server.address}", flush=True)
        while not stop.wait(0.5):
            pass


def enter(namebook: Path, rank: int, address: str | None) -> None:
    """Add an address to the namebook; several servers may do so at once."""
    with namebook.open("a+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        book = json.loads(file.read() or "{}")
        file.truncate(0)
        json.dump({**book, str(rank): address}, file)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder that datapipes.datasets.open reads")
    parser.add_argument("--split", type=int, default=0, help="number of the split in the files")
    parser.add_argument("--seeds", type=Path, required=True, help="file to write: seeds and labels of the split")
    parser.add_argument("--namebook", type=Path, required=True, help="JSON file of the servers' addresses")
    parser.add_argument("--rank", type=int, default=0, help="number of this server")
    parser.add_argument("--address", default="127.0.0.1:0", help="where to listen")
    return parser.parse_args()


if __name__ == "__main__":
    main()
