"""Train GraphSAGE on the products of Amazon Photo by DistributedDataParallel, in two processes with a loader each.

Run: python examples/pyg/distributed_sampling.py [--loader pyg]

As PyG's users do with a GPU for each process; here the gradients are averaged by gloo, on the processor. All processes
share the memory of the data. A rank trains on its own piece of the training products and tests its own piece of the
test products; the parent adds up how many are right, in memory that all share.
"""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pyg_data import amazon_photo, arguments, loader_options
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

args = arguments(__doc__, epochs=20, data="amazon_photo")
if args.loader == "datapipes":
    from datapipes.pyg.loader import NeighborLoader
else:
    from torch_geometric.loader import NeighborLoader

RANKS = 2


def loader_of(data: Data, mask: Tensor, rank: int, shuffle: bool = False) -> NeighborLoader:
    """Return a loader of the rank's piece of the nodes of a mask."""
    return NeighborLoader(
        data,
        input_nodes=mask.nonzero().flatten().tensor_split(RANKS)[rank],
        num_neighbors=[10, 5],
        batch_size=32,
        shuffle=shuffle,
        **loader_options(args),
    )


@torch.no_grad()
def test(model: torch.nn.Module, loader: NeighborLoader) -> int:
    """Return the number of seeds that are classified right."""
    model.eval()
    right = 0
    for batch in loader:
        scores, y = model(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]
        right += int((scores.argmax(dim=-1) == y).sum())
    return right


def run(rank: int, data: Data, meeting: str, right: Tensor) -> None:
    """Train with the other ranks, then write into `right[rank]` how many test products of the piece are right."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    train_loader = loader_of(data, data.train_mask, rank, shuffle=True)
    test_loader = loader_of(data, data.test_mask, rank)
    torch.manual_seed(args.seed)
    sage = GraphSAGE(data.num_features, 128, num_layers=2, out_channels=int(data.y.max()) + 1, dropout=0.5)
    model = DistributedDataParallel(sage)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(1, args.epochs + 1):
        model.train()
        for batch in train_loader:
            optimizer.zero_grad()
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            loss = F.cross_entropy(out, batch.y[: batch.batch_size])
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch:2d}  loss of the last batch {float(loss.detach()):.4f}", flush=True)
    right[rank] = test(sage, test_loader)
    dist.destroy_process_group()


if __name__ == "__main__":
    data, right = amazon_photo(args.data), torch.zeros(RANKS, dtype=torch.int64).share_memory_()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run, (data, str(Path(folder) / "meeting"), right), nprocs=RANKS)
    print(f"test accuracy {int(right.sum()) / int(data.test_mask.sum()):.4f}")
