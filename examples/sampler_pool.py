"""Processes that sample and push, and a process that trains on what comes: DGL's pool, sender and receiver.

Run:
    python examples/sampler_pool.py train --namebook "0=127.0.0.1:7100" --num-sender 2 [--data debian | FOLDER]
    python examples/sampler_pool.py sample --namebook "0=127.0.0.1:7100" --num-worker 2 [--data debian | FOLDER]

Start either first. `sample` forks `--num-worker` processes that share the graph and the features; worker k makes the
minibatches k, k + n, ... of each epoch, and pushes minibatch i to trainer i % (number of trainers). `train` is one
trainer, `--rank` of those in the namebook; it takes minibatches in the order in which they arrive, until all workers
have signalled the epoch's end. So two runs train in another order; `dp.DataLoader` over `RemoteReceivingChannel`
(examples/serving) gives the same run again.
"""

from __future__ import annotations

import argparse
import multiprocessing

import torch
from training import evaluate, make_model, pipeline, settings_for, train_epoch

import datapipes as dp
from datapipes.distributed import SamplerPool, SamplerReceiver, SamplerSender


class Pool(SamplerPool):
    """Samples and sends all epochs of a split."""

    def __init__(self, data: dp.datasets.Dataset) -> None:
        self.data = data
        self.number = multiprocessing.get_context("fork").Value("i", 0)  # of the next worker that starts

    def worker(self, args: argparse.Namespace) -> None:
        with self.number:
            rank, self.number.value = self.number.value, self.number.value + 1
        settings = settings_for(self.data)
        pipe = pipeline(self.data, self.data.train_set, settings.fanouts, args.batch_size, shuffle=True, seed=args.seed)
        loader = dp.DataLoader(pipe)
        sender = SamplerSender(args.namebook, graph=self.data.graph)
        for epoch in range(args.epochs):
            for index in range(rank, len(loader), args.num_worker):
                sender.send(loader.minibatch(epoch, index), index % len(args.namebook))
            for trainer in args.namebook:
                sender.signal(trainer)


def train(args: argparse.Namespace, data: dp.datasets.Dataset) -> None:
    torch.manual_seed(args.seed)
    settings = settings_for(data)
    model = make_model(data, settings)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    with SamplerReceiver(data.graph, args.namebook[args.rank], args.num_sender) as receiver:
        for epoch in range(args.epochs):
            loss, _ = train_epoch(model, receiver, optimizer)
            validation = evaluate(model, data, data.validation_set, "validation")
            print(f"epoch {epoch:3d}  loss {loss:.4f}  validation {validation:.4f}", flush=True)
    print(f"test accuracy {evaluate(model, data, data.test_set, 'test'):.4f}")


def main() -> None:
    args = parse_arguments()
    data = dp.datasets.debian_packages() if args.data == "debian" else dp.datasets.open(args.data, split=args.split)
    if args.role == "train":
        train(args, data)
    else:
        Pool(data).start(args.num_worker, args)


def parse_namebook(text: str) -> dict[int, str]:
    return {int(rank): address for rank, _, address in (each.partition("=") for each in text.split(","))}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=["train", "sample"])
    parser.add_argument("--namebook", type=parse_namebook, required=True, help='of trainers: "0=HOST:PORT,1=HOST:PORT"')
    parser.add_argument("--data", default="debian", help="'debian', or a folder that datapipes.datasets.open reads")
    parser.add_argument("--split", type=int, default=0, help="number of the split in the files")
    parser.add_argument("--epochs", type=int, default=8, help="the same for all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-worker", type=int, default=2, help="of `sample`: processes")
    parser.add_argument("--batch-size", type=int, default=1024, help="of `sample`")
    parser.add_argument("--rank", type=int, default=0, help="of `train`: number of this trainer")
    parser.add_argument("--num-sender", type=int, default=2, help="of `train`: workers of all pools")
    return parser.parse_args()


if __name__ == "__main__":
    main()
