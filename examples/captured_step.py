"""Train on minibatches of fixed shapes: the step is captured once in a CUDA graph, and replayed without Python.

Run: python examples/captured_step.py [--nodes N] [--epochs N] [--buckets N] [--backend NAME]

`measure_sizes` finds the sizes of the minibatches, `pad` gives them these, and `copy_to(into=...)` behind the loader
copies each to the memory that the captured step reads. With several buckets there is a captured step for each.

Without CUDA the same step is compiled, `torch.compile(dynamic=False)`, once for each bucket; `--backend` chooses its
backend, such as "eager". The graph is made: nodes of one group link to each other, and features tell little of the
group, so the model must look at neighbors. Prints how often the step was captured or compiled, and the accuracy.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import datapipes as dp

NUM_GROUPS, WIDTH, BATCH_SIZE, FANOUTS = 8, 32, 256, [10, 5]
Hops = list[tuple[Tensor, Tensor]]  # of each block: indptr, indices


class GraphSAGE(nn.Module):
    """Two layers of means over in-edges, written with fixed shapes: no value decides a size."""

    def __init__(self) -> None:
        super().__init__()
        widths = [WIDTH, 64, NUM_GROUPS]
        self.layers = nn.ModuleList(nn.Linear(2 * a, b) for a, b in itertools.pairwise(widths))

    def forward(self, x: Tensor, hops: Hops) -> Tensor:
        for layer, (indptr, indices) in zip(self.layers, hops, strict=True):
            num_dst, counts = indptr.shape[0] - 1, indptr.diff()
            ends = torch.arange(num_dst, device=x.device)
            destinations = torch.repeat_interleave(ends, counts, output_size=indices.shape[0])
            summed = x.new_zeros(num_dst, x.shape[1]).index_add(0, destinations, x[indices])
            mean = summed / counts.clamp(min=1).unsqueeze(1)
            x = layer(torch.cat((x[:num_dst], mean), 1))
            x = x if layer is self.layers[-1] else F.relu(x)
        return x


class Trainer:
    """Runs training steps: captured on a GPU, compiled without one."""

    def __init__(self, device: str, backend: str) -> None:
        self.model = GraphSAGE().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01, capturable=device == "cuda")
        self.captured: dict[int, tuple[Any, Tensor]] = {}  # {bucket: (CUDA graph, its loss)}
        self.compiled: list[Any] = []  # what the backend was given
        self.is_captured = device == "cuda"
        self._loss = torch.compile(self._loss_of, dynamic=False, backend=self._counted(backend))

    def train(self, minibatch: dp.MiniBatch) -> Tensor:
        """Take a step, and return its loss. On a GPU the minibatch must lie in the memory of its bucket."""
        if not self.is_captured:
            return self._step(minibatch, self._loss)
        if minibatch.bucket not in self.captured:
            self.captured[minibatch.bucket] = self._capture(minibatch)
        graph, loss = self.captured[minibatch.bucket]
        graph.replay()
        return loss

    def _capture(self, minibatch: dp.MiniBatch) -> tuple[Any, Tensor]:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # libraries allocate their memory in the first steps, which are steps too
            for _ in range(3):
                self._step(minibatch, self._loss_of)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the loader's threads use the GPU meanwhile
            loss = self._step(minibatch, self._loss_of)
        return graph, loss

    def _step(self, minibatch: dp.MiniBatch, loss_of: Callable[..., Tensor]) -> Tensor:
        self.optimizer.zero_grad(set_to_none=False)
        hops = [(block.indptr, block.indices) for block in minibatch.blocks]
        loss = loss_of(minibatch.node_features["feat"], minibatch.labels, hops)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def _loss_of(self, x: Tensor, labels: Tensor, hops: Hops) -> Tensor:
        # Rows of padding have the label -100, which cross_entropy leaves out. Seeds are the first rows.
        return F.cross_entropy(self.model(x, hops)[: labels.shape[0]], labels)

    def _counted(self, backend: str) -> Callable[..., Any]:
        compile_ = torch._dynamo.lookup_backend(backend)

        def count(module: Any, inputs: Any) -> Any:
            self.compiled.append(module)
            return compile_(module, inputs)

        return count


def made_data(num_nodes: int) -> tuple[dp.CSCGraph, dp.FeatureStore, Tensor]:
    """Return graph, features and the group of each node."""
    numbers = torch.Generator().manual_seed(0)
    groups = torch.randint(0, NUM_GROUPS, (num_nodes,), generator=numbers)
    order = groups.argsort()  # nodes of a group are neighbors in this order
    place = torch.randint(0, num_nodes, (15 * num_nodes,), generator=numbers)
    near = (place + torch.randint(1, num_nodes // 40, place.shape, generator=numbers)) % num_nodes
    graph = dp.CSCGraph.from_edge_index(torch.stack((order[place], order[near])), num_nodes)
    features = F.one_hot(groups, WIDTH) + 2 * torch.randn(num_nodes, WIDTH, generator=numbers)
    return graph, dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features)}), groups


def main() -> None:
    args = parse_arguments()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    graph, features, groups = made_data(args.nodes)
    if device == "cuda":
        features.pin_memory_()
    is_test = torch.arange(args.nodes) % 5 == 0
    trainer = Trainer(device, args.backend)

    def sampled(ids: Tensor, *, shuffle: bool) -> dp.Stage:
        items = dp.ItemSet((ids, groups[ids]), names=("seeds", "labels"))
        return dp.ItemSampler(items, BATCH_SIZE, shuffle=shuffle, seed=0).sample_neighbor(graph, FANOUTS)

    chain = sampled((~is_test).nonzero().view(-1), shuffle=True)
    chain = chain.pad(dp.measure_sizes(chain, buckets=args.buckets))
    loader = dp.DataLoader(chain.copy_to(device).fetch_feature(features, ["feat"]))
    pipe = loader.copy_to(device, into={})
    for epoch in range(args.epochs):
        losses = torch.stack([trainer.train(minibatch).clone() for minibatch in pipe])
        print(f"epoch {epoch}  loss {losses.mean():.4f}")
    print(f"captured {len(trainer.captured)} times, compiled {len(trainer.compiled)} times")
    print(f"padding: {dict(loader.stats()['padding'])}")
    loader.close()

    right = total = 0
    test = sampled(is_test.nonzero().view(-1), shuffle=False)
    with torch.no_grad():
        for minibatch in test.copy_to(device).fetch_feature(features, ["feat"]):
            hops = [(block.indptr, block.indices) for block in minibatch.blocks]
            scores = trainer.model(minibatch.node_features["feat"], hops)
            right += int((scores.argmax(1) == minibatch.labels).sum())
            total += len(minibatch.labels)
    print(f"test accuracy {right / total:.4f}")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--buckets", type=int, default=1)
    parser.add_argument("--backend", default="inductor", help="of torch.compile, where there is no GPU")
    return parser.parse_args()


if __name__ == "__main__":
    main()
