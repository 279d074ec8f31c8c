"""Train GraphSAGE to classify nodes; the main job of this package, from files to test accuracy.

Run: python examples/node_classification.py [--data debian | FOLDER] [--seed N] [--out FOLDER]

`--data debian` (the default) is the embedded graph of Debian's packages; the task is to predict the archive section of
a package. FOLDER may hold Planetoid files or an .npz that `dp.datasets.open` reads. `--metric auc` is for two
classes. Prints loss and metric of each epoch, the test metric of the epoch that validated best, and the time of each
stage. `--stored-as int8` trains on features of float32 that are stored with fewer bits; words first become 128 numbers
for each node. `--out` also writes learning_curve.png, pipeline.svg and report.html. Training minibatches are sampled in
`--workers` processes; their number does not change the minibatches, and so not the accuracy.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import os
import time
from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import METRICS, Settings, evaluate, make_model, pipeline, settings_for, train_epoch, with_stored_features

import datapipes as dp

STORED_AS = ("float32", "float16", "bfloat16", "int8")


def main() -> None:
    args = parse_arguments()
    data = dp.datasets.debian_packages() if args.data == "debian" else open_files(args)
    if args.stored_as is not None:
        data = with_stored_features(data, args.stored_as)
    changes = {name: value for name in vars(Settings()) if (value := getattr(args, name)) is not None}
    settings = dataclasses.replace(settings_for(data), **changes)
    print(f"{data.name}: {data.graph}, {data.num_classes} classes")
    print(
        f"train {len(data.train_set)}, validation {len(data.validation_set)}, test {len(data.test_set)} nodes; "
        f"{settings}"
    )

    # The other half is for the workers and the rest of the machine: torch's threads wait for each other in every
    # operation, so one that shares its processor stops them all. On two processors both pay: the workers need little.
    processors = len(os.sched_getaffinity(0))
    torch.set_num_threads(args.threads or max(min(2, processors), processors // 2))
    torch.manual_seed(args.seed)
    model = make_model(data, settings)
    pipe = pipeline(data, data.train_set, settings.fanouts, settings.batch_size, shuffle=True, seed=args.seed)
    with dp.DataLoader(pipe, num_workers=args.workers) as loader:
        print(loader.explain())
        history, best = train(model, data, loader, settings, args.metric)
        test_score = evaluate(best, data, data.test_set, "test", args.metric)
        print(loader.stats())
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)
            loader.to_svg(args.out / "pipeline.svg")
            draw_learning_curve(history, data.name, args.metric, test_score, args.out / "learning_curve.png")
            loader.report(args.out / "report.html")
            print(f"written to {args.out}: learning_curve.png, pipeline.svg, report.html")
    print(f"test {args.metric} {test_score:.4f}")


def open_files(args: argparse.Namespace) -> dp.datasets.Dataset:
    return dp.datasets.open(
        args.data,
        split=args.split,
        normalize_features=args.normalize_features,
        largest_component=args.largest_component,
    )


def train(
    model: torch.nn.Module, data: dp.datasets.Dataset, loader: dp.DataLoader, settings: Settings, metric: str
) -> tuple[list[dict[str, float]], torch.nn.Module]:
    """Train all epochs; return a record of each, and a copy of the model at its best validation.

    Of equally good epochs the last counts: by then the learning rate is low, and the model steady. Without validation
    nodes it is the last.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    total_steps = settings.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.learning_rate, total_steps=total_steps)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(settings.averaging))
    history, best, best_validation = [], model, -1.0
    for epoch in range(settings.epochs):
        began = time.perf_counter()
        loss, accuracy = train_epoch(model, loader, optimizer, schedule, f"epoch {epoch}")
        seconds = time.perf_counter() - began
        averaged.update_parameters(model)
        validation = float("nan")
        if len(data.validation_set) > 0:
            validation = evaluate(averaged.module, data, data.validation_set, "validation", metric)
        shown = f"{validation:.4f}" if len(data.validation_set) > 0 else "none"
        print(
            f"epoch {epoch:3d}  loss {loss:.4f}  train {accuracy:.4f}  validation {shown}  {seconds:.1f} s", flush=True
        )
        history.append({"loss": loss, "train": accuracy, "validation": validation})
        if not validation < best_validation:  # so written for nan
            best, best_validation = copy.deepcopy(averaged.module), validation
    return history, best


def draw_learning_curve(history: list[dict[str, float]], name: str, metric: str, test_score: float, path: Path) -> None:
    """Write a PNG of training loss, training accuracy and validation metric by epoch."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), constrained_layout=True)
    left.plot([record["loss"] for record in history], marker=".")
    left.set(xlabel="epoch", ylabel="training loss")
    for part, label in (("train", "train accuracy"), ("validation", f"validation {metric}")):
        right.plot([record[part] for record in history], marker=".", label=label)
    right.axhline(test_score, color="grey", linestyle="--", label=f"test {metric} {test_score:.3f}")
    right.set(xlabel="epoch")
    right.legend()
    figure.suptitle(f"GraphSAGE on {name}")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="debian", help="'debian', or a folder or .npz that dp.datasets.open reads")
    parser.add_argument("--split", type=int, default=0, help="split of the files, or seed of a random one")
    parser.add_argument("--normalize-features", action="store_true", help="scale rows of features to a sum of 1")
    parser.add_argument("--largest-component", action="store_true", help="keep the largest connected component")
    parser.add_argument("--stored-as", choices=STORED_AS, help="train on features of float32, stored so")
    parser.add_argument("--metric", choices=METRICS, default="accuracy", help="auc is for two classes")
    parser.add_argument("--seed", type=int, default=0, help="of the model, the order of the seeds and the sampling")
    parser.add_argument("--workers", type=int, default=2, help="processes that sample; 0 samples in a thread")
    parser.add_argument("--threads", type=int, help="of torch; half of the processors by default, and two at least")
    parser.add_argument("--out", type=Path, help="folder for the pictures")
    for field in dataclasses.fields(Settings):
        if field.name == "fanouts":
            parser.add_argument(
                "--fanouts", type=int, nargs="+", help="one entry a layer, the hop next to the seeds last"
            )
        elif isinstance(field.default, bool):
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", action=argparse.BooleanOptionalAction, help="default by the data"
            )
        else:
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=type(field.default), help="default by the data"
            )
    return parser.parse_args()


if __name__ == "__main__":
    main()
