"""Train GraphSAGE with a map for each relation to classify nodes of a heterogeneous graph.

Run: python examples/hetero_classification.py [--data debian | FOLDER] [--seed N]

`--data debian` (the default) is the embedded graph of Debian's packages with all of its relations, source packages and
virtual names; node_classification.py trains on the same packages, words and split with one relation. FOLDER may hold
any data set of node classification with types that `dp.datasets.open` reads. The chain of stages, the training and the
evaluation are those of node_classification.py: minibatches carry a dict by type where they carry a tensor there.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

import torch
from node_classification import print_stage_rates, train
from training import Settings, evaluate, make_model, pipeline, settings_for

import datapipes as dp


def main() -> None:
    args = parse_arguments()
    data = dp.datasets.debian_packages(heterogeneous=True) if args.data == "debian" else dp.datasets.open(args.data)
    changes = {name: value for name in vars(Settings()) if (value := getattr(args, name)) is not None}
    settings = dataclasses.replace(settings_for(data), **changes)
    print(f"{data.name}: {data.graph}, {data.num_classes} classes")
    print(
        f"train {len(data.train_set)}, validation {len(data.validation_set)}, test {len(data.test_set)} nodes; "
        f"{settings}"
    )
    torch.set_num_threads(args.threads or max(1, len(os.sched_getaffinity(0)) // 2))
    torch.manual_seed(args.seed)
    model = make_model(data, settings)
    pipe = pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True, seed=args.seed)
    with dp.DataLoader(pipe, num_workers=args.workers) as loader:
        _, best = train(model, data, loader, settings, "accuracy")
        test_score = evaluate(best, data, data.test_set, "test")
        print_stage_rates(loader)
    print(f"test accuracy {test_score:.4f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder that dp.datasets.open reads")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the order of the seeds and the sampling")
    parser.add_argument("--workers", type=int, default=2, help="processes that sample; 0 samples in a thread")
    parser.add_argument("--threads", type=int, help="of torch; half of the processors by default")
    for field in dataclasses.fields(Settings):
        if field.name == "fanouts":
            parser.add_argument("--fanouts", type=int, nargs="+", help="one entry a hop, of each relation")
        elif field.name != "own_map":  # a graph with types needs it
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=type(field.default), help="default by the data"
            )
    args = parser.parse_args()
    args.own_map = None
    return args


if __name__ == "__main__":
    main()
