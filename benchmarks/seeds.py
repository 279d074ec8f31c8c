"""How fast do ItemSampler and DistributedItemSampler make the minibatches of seeds, on one thread?

A shuffled epoch over 4M items with labels (two int64 tensors), batch sizes 1,024 and 65,536, and the first minibatch of
an epoch, which needs no permutation of all items, but by weight an order of them. Compared with the plain way:
torch.randperm once per epoch (counted in its time) and two index_selects per minibatch. The limit is a memcpy of the
bytes handed out. All in alternation, median of 9.
Run: python benchmarks/seeds.py
Result (2-core AMD EPYC VM, shared, commit 99cefe3): 65,536 seeds 13.6 M items/s (1.45 x randperm and index, memcpy
548), 1,024 seeds 5.7 M items/s, 0.18 ms a minibatch (0.78 x: half of that time does not depend on the batch size).
The first minibatch comes after 0.6 ms; torch.randperm of the epoch alone takes 91 ms. By weight (same machine, commit
a0185491, median of 3) it waits for the order of the epoch, 0.81 s, torch.multinomial takes 0.69; with replacement it
comes after 1.3 ms, torch.multinomial takes 1.4 s.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import alternate, memcpy, parser, peak_bytes, report, timed

import datapipes as dp

NUM_ITEMS = 4_000_000
BYTES_PER_ITEM = 16  # id and label
SHARE = 16  # one measurement covers 1/16 of an epoch


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    ids, labels = torch.arange(NUM_ITEMS), torch.arange(NUM_ITEMS) % 47
    items = dp.ItemSet((ids, labels), names=("seeds", "labels"))
    figures: dict[str, float | str] = {}
    for batch_size in (1024, 65_536):
        figures |= epoch_figures(items, batch_size, args.repeats)
    first = dp.ItemSampler(items, 1024, shuffle=True, seed=1)
    waits = {
        "first minibatch of an epoch (us)": lambda _: 1e6 * timed(lambda: next(iter(first)))[0],
        "torch.randperm of an epoch (us)": lambda _: 1e6 * timed(lambda: torch.randperm(NUM_ITEMS))[0],
    }
    weights = torch.arange(NUM_ITEMS) % 47 + 1.0
    for name, options in (("by weight", {}), ("by weight with replacement", {"replacement": True})):
        by_weight = dp.ItemSampler(items, 1024, weights=weights, seed=1, **options)
        waits[f"first minibatch {name} (us)"] = lambda _, stage=by_weight: 1e6 * timed(lambda: next(iter(stage)))[0]
        waits[f"torch.multinomial {name} (us)"] = lambda _, replace="replacement" in options: (
            1e6 * timed(lambda: torch.multinomial(weights, NUM_ITEMS, replace))[0]
        )
    figures |= alternate(waits, args.repeats)
    figures["peak memory of a first minibatch (bytes)"] = peak_bytes(lambda: next(iter(first)))
    report(figures, args.json)


def epoch_figures(items: dp.ItemSet, batch_size: int, repeats: int) -> dict[str, float]:
    num_batches = NUM_ITEMS // batch_size // SHARE
    num_items = num_batches * batch_size
    ids, labels = (items.take(torch.arange(NUM_ITEMS))[name] for name in ("seeds", "labels"))
    single = dp.ItemSampler(items, batch_size, shuffle=True, seed=1)
    ranked = dp.DistributedItemSampler(items, batch_size, rank=1, world_size=4, shuffle=True, seed=1)

    def sampler(stage: dp.Stage) -> Callable[[int], float]:
        def items_per_second(_: int) -> float:
            stream, steps = iter(stage), len(stage) // SHARE
            return steps * batch_size / timed(lambda: [next(stream) for _ in range(steps)])[0]

        return items_per_second

    def plain(_: int) -> float:
        permuting, order = timed(lambda: torch.randperm(NUM_ITEMS))
        batches = order.split(batch_size)[:num_batches]
        indexing, _ = timed(lambda: [(ids[batch], labels[batch]) for batch in batches])
        return num_items / (permuting / SHARE + indexing)

    copy = memcpy(BYTES_PER_ITEM * num_items)
    sides = {
        "ItemSampler": sampler(single),
        "DistributedItemSampler": sampler(ranked),
        "randperm and index": plain,
        "memcpy": lambda round_: copy(round_) / BYTES_PER_ITEM,
    }
    rates = alternate(sides, repeats)
    figures = {f"{batch_size} seeds: {name} (M items/s)": rate / 1e6 for name, rate in rates.items()}
    figures[f"{batch_size} seeds: ItemSampler (us/minibatch)"] = 1e6 * batch_size / rates["ItemSampler"]
    figures[f"{batch_size} seeds: ItemSampler (GB/s)"] = BYTES_PER_ITEM * rates["ItemSampler"] / 1e9
    for name in ("randperm and index", "memcpy"):
        figures[f"{batch_size} seeds: ratio to {name}"] = rates["ItemSampler"] / rates[name]
    return figures


if __name__ == "__main__":
    main()
