"""Train GraphSAGE with a map for each relation to classify nodes of a heterogeneous graph.

Run: python examples/hetero_classification.py [--data debian | FOLDER] [--seed N] [--seeds COUNT]

`--data debian` (the default) is the embedded graph of Debian's packages with all of its relations, source packages and
virtual names; node_classification.py trains on the same packages, words and split with one relation. FOLDER may hold
any data set of node classification with types that `dp.datasets.open` reads, such as AIFB. The chain of stages, the
training and the evaluation are those of node_classification.py: minibatches carry a dict by type where they carry a
tensor there.

The files of AIFB name no nodes for validation. Then all training nodes train, for a number of epochs that is known
before, and the last model is tested. To compare settings, `--validation 0.2` holds a fifth of them back, another fifth
for each seed, and scores these in place of the test nodes. With 36 test nodes one more or less is 2.8 points;
`--seeds 10` prints the mean of ten runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import os

import torch
from node_classification import train
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
    part = "test" if args.validation is None else "validation"
    scores = []
    for seed in range(args.seed, args.seed + args.seeds):
        given = data if args.validation is None else data.with_validation(args.validation, seed=seed)
        scores.append(run(given, settings, part, seed, args.workers))
        print(f"{part} accuracy {scores[-1]:.4f}", flush=True)
    if args.seeds > 1:
        print(f"mean of {args.seeds} seeds {sum(scores) / args.seeds:.4f}")


def run(data: dp.datasets.Dataset, settings: Settings, part: str, seed: int, num_workers: int) -> float:
    """Train a new model; return its accuracy on the test or the validation nodes."""
    torch.manual_seed(seed)
    model = make_model(data, settings)
    pipe = pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True, seed=seed)
    with dp.DataLoader(pipe, num_workers=num_workers) as loader:
        _, best = train(model, data, loader, settings, "accuracy")
        score = evaluate(best, data, data.test_set if part == "test" else data.validation_set, part)
        print(loader.stats())
    return score


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder that dp.datasets.open reads")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the order of the seeds and the sampling")
    parser.add_argument("--seeds", type=int, default=1, help="runs, with the seeds from --seed on")
    parser.add_argument("--validation", type=float, help="share of the training nodes to hold back, if none are named")
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
