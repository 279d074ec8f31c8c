"""Train GraphSAGE on minibatches that servers make: no graph and no features in the trainers.

Run: torchrun --nproc-per-node 2 examples/serving/train.py --seeds FILE --namebook FILE

`--seeds` and `--namebook` were written by examples/serving/serve.py. The chain stands over what the servers say of
their graph. Of each epoch, rank r of n trains on the minibatches r, r + n, ...; every minibatch comes to one rank, and
a rank with one minibatch less than the others waits for them (Join). Any number of servers gives the same minibatches.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

import datapipes as dp
from datapipes.distributed import DistFeatureStore, RemoteReceivingChannel, RemoteSource, connect

sys.path.insert(0, str(Path(__file__).parents[1]))
from graphsage import GraphSAGE, RowEncoder, WordEncoder
from training import scores


def main() -> None:
    args = parse_arguments()
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    given = torch.load(args.seeds, weights_only=True)
    about, sets = given["about"], given["sets"]
    torch.manual_seed(args.seed)  # equal first weights on all ranks
    encoder = (WordEncoder if about["key"] == "words" else RowEncoder)(about["width"], args.hidden, 0.1)
    model = GraphSAGE(encoder, [args.hidden] * len(args.fanouts) + [about["num_classes"]], 1, 0.5, True)
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=args.learning_rate)
    with connect(args.namebook) as client:
        graph = client.graph()
        features = DistFeatureStore(graph)

        def loader(name: str, fanouts: list[int], *, shuffle: bool) -> dp.DataLoader:
            items = dp.ItemSet((sets[name]["seeds"], sets[name]["labels"]))
            pipe = dp.ItemSampler(items, args.batch_size, shuffle=shuffle, seed=args.seed)
            pipe = pipe.sample_neighbor(graph, fanouts).fetch_feature(features, [about["key"]])
            ranks = [*client.addresses]
            producers = [client.create_producer(server, pipe, name) for server in ranks]
            channel = RemoteReceivingChannel(ranks, producers, client=client, rank=rank, world_size=world_size)
            return dp.DataLoader(RemoteSource(pipe, channel))

        training = loader("train", args.fanouts, shuffle=True)
        validation = loader("validation", args.fanouts, shuffle=False)
        if rank == 0:
            print(training.explain(), flush=True)
        for epoch in range(args.epochs):
            trained.train()
            with Join([trained]):
                for minibatch in training:
                    loss = torch.nn.functional.cross_entropy(scores(trained, minibatch), minibatch.labels)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
            accuracy = evaluate(model, validation)
            if rank == 0:
                print(f"epoch {epoch:3d}  loss {loss.item():.4f}  validation {accuracy:.4f}", flush=True)
        training.close()
        validation.close()
    dist.destroy_process_group()


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: dp.DataLoader) -> float:
    """Return the accuracy over the minibatches of all ranks."""
    model.eval()
    counts = torch.zeros(2)
    for minibatch in loader:
        found = scores(model, minibatch).argmax(1)
        counts += torch.tensor([(found == minibatch.labels).sum(), len(minibatch.labels)])
    dist.all_reduce(counts)
    return float(counts[0] / counts[1])


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=Path, required=True, help="what serve.py wrote")
    parser.add_argument("--namebook", type=Path, required=True, help="JSON file {server rank: address}")
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 10], help="the hop next to the seeds last")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
