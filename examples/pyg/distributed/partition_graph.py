"""Cut a data set into parts for the training scripts of this folder, and give each part its seeds.

Run: python examples/pyg/distributed/partition_graph.py coauthor_cs --num-parts 2 [--root parts]

There are as many parts as there will be ranks. Each machine needs the folders of this layout:

    ROOT/coauthor_cs-partitions/                      what Partitioner writes
    ROOT/coauthor_cs-label/label.pt                   the label of each node, -1 if it has none
    ROOT/coauthor_cs-train-partitions/partition0.pt   the seeds of part 0; with others for `test`

A seed is given to the part that owns it: a node, or the destination of a link. Nodes are ids of the whole graph. Links
are [2, n], source and destination; those of `test` are [3, n], with whether the link is there.
`acm_links` holds back a fifth of the links between authors and papers; half of them test, with two drawn pairs for
each. Of the others, three of ten are seeds and the rest pass messages.
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import torch
import torch_geometric.transforms as T
from torch import Tensor
from torch_geometric import seed_everything
from torch_geometric.data import Data, HeteroData

from datapipes import datasets
from datapipes.pyg.distributed import Partitioner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pyg_data import DATA, acm, coauthor_cs

WRITES, WRITTEN_BY = ("author", "writes", "paper"), ("paper", "rev_writes", "author")


class Task(NamedTuple):
    """A graph, its labels, the seeds of each set, and the type of node that a part must own to have the seed."""

    graph: Data | HeteroData
    labels: Tensor | None
    seeds: dict[str, Tensor]
    owner: str | None = None


def of_authors(folder: Path) -> Task:
    data = coauthor_cs(folder)
    return Task(data, data.y, of_masks(data))


def of_papers(folder: Path) -> Task:
    data = T.Constant(node_types=["author", "subject"])(acm(folder, split=2))
    return Task(data, data["paper"].y, of_masks(data["paper"]), "paper")


def of_links_to_papers(folder: Path) -> Task:
    split = T.RandomLinkSplit(
        num_val=0.1,
        num_test=0.1,
        disjoint_train_ratio=0.3,
        neg_sampling_ratio=2.0,
        add_negative_train_samples=False,
        edge_types=WRITES,
        rev_edge_types=WRITTEN_BY,
    )
    graph, _, test = split(T.Constant(node_types=["author", "subject"])(acm(folder)))
    links = graph[WRITES].pop("edge_label_index")
    del graph[WRITES].edge_label  # all are links
    seeds = {"train": links, "test": marked(test[WRITES].edge_label_index, test[WRITES].edge_label)}
    return Task(graph, None, seeds, "paper")


def of_drugs(folder: Path) -> Task:
    dataset = datasets.open(folder)
    links = dataset.train_set[:].t()
    num_nodes = dataset.graph.num_nodes
    # Drugs have no features. Their number names their row of a table of learned vectors.
    graph = Data(x=torch.arange(num_nodes)[:, None], edge_index=torch.cat([links, links.flip(0)], dim=1))
    pairs, labels = dataset.test_set[:]
    return Task(graph, None, {"train": links, "test": marked(pairs.t(), labels)})


def of_masks(store) -> dict[str, Tensor]:
    return {name: store[f"{name}_mask"].nonzero().flatten() for name in ("train", "test")}


def marked(links: Tensor, labels: Tensor) -> Tensor:
    return torch.cat([links, labels.long()[None]])


# {name: (the folder in shared/data, the task in it)}
TASKS = {
    "coauthor_cs": ("coauthor_cs", of_authors),
    "acm_heco": ("acm_heco", of_papers),
    "acm_links": ("acm_heco", of_links_to_papers),
    "ogbl_ddi": ("ogbl_ddi", of_drugs),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", choices=TASKS)
    parser.add_argument("--num-parts", type=int, default=2)
    parser.add_argument("--root", type=Path, default=Path("parts"))
    parser.add_argument("--seed", type=int, default=0, help="of the split of links, where it is drawn")
    parser.add_argument("--data", type=Path, help="the folder with the files of the data set")
    args = parser.parse_args()
    folder, make_task = TASKS[args.dataset]
    seed_everything(args.seed)
    task = make_task(args.data or DATA / folder)

    root = args.root / f"{args.dataset}-partitions"
    Partitioner(task.graph, args.num_parts, str(root)).generate_partition()
    owner = torch.load(root / ("node_map.pt" if task.owner is None else f"node_map/{task.owner}.pt"))
    if task.labels is not None:
        save(task.labels, args.root / f"{args.dataset}-label" / "label.pt")
    for name, seeds in task.seeds.items():
        nodes = seeds if seeds.dim() == 1 else seeds[1]
        for part in range(args.num_parts):
            path = args.root / f"{args.dataset}-{name}-partitions" / f"partition{part}.pt"
            save(seeds[..., owner[nodes] == part], path)
        counts = owner[nodes].bincount(minlength=args.num_parts).tolist()
        print(f"{name} seeds of each part: {counts}")


def save(value: Tensor, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


if __name__ == "__main__":
    main()
