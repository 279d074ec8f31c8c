"""What takes minibatches in training.py, here and in the peer's interpreter: a model, and a played device; torch only.

A block is anything with `indptr` and `indices`, the in-edges of its destinations over local ids, destinations first.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPOCHS = 16  # of a training to an accuracy, at most


class Block(NamedTuple):
    """The in-edges of destinations, as CSC."""

    indptr: Tensor
    indices: Tensor


class GraphSAGE(nn.Module):
    """A layer adds a linear map of a node's own vector and one of the mean over its in-edges."""

    def __init__(self, widths: Sequence[int], dropout: float = 0.0) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.neighbors = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, h: Tensor, blocks: Sequence[Any]) -> Tensor:
        """Return scores [number of seeds, last width]."""
        for number, (own, neighbors, block) in enumerate(zip(self.own, self.neighbors, blocks, strict=True), start=1):
            h = own(h[: len(block.indptr) - 1]) + neighbors(_mean_of_neighbors(block, h))
            if number < len(self.own):
                h = _drop(h.relu(), self.dropout if self.training else 0.0)
        return h


def _drop(h: Tensor, share: float) -> Tensor:
    """Return `h` with this share of its numbers dropped.

    F.dropout takes 15 times as long in a build of torch without MKL's random numbers; this is as fast in both.
    """
    return h if share == 0 else h * (torch.rand_like(h) >= share) / (1 - share)


def _mean_of_neighbors(block: Any, h: Tensor) -> Tensor:
    """Return [num_dst, width], without waiting for a GPU."""
    if not h.is_cuda:
        return F.embedding_bag(block.indices, h, block.indptr, mode="mean", include_last_offset=True)
    degree, num_dst = block.indptr.diff(), len(block.indptr) - 1
    places = torch.arange(num_dst, device=h.device).repeat_interleave(degree, output_size=len(block.indices))
    sums = h.new_zeros(num_dst, h.shape[1]).index_add(0, places, h[block.indices])
    return sums / degree.clamp(min=1)[:, None]


class Steps:
    """Training steps of GraphSAGE over rows of features, at most STEPS_AHEAD before the GPU has done them."""

    STEPS_AHEAD = 2
    NUM_CLASSES = 47

    def __init__(
        self,
        num_nodes: int,
        row_width: int,
        hidden: int,
        num_layers: int,
        device: torch.device,
        **of_optimizer: Any,
    ) -> None:
        torch.manual_seed(0)
        self._model = GraphSAGE([row_width, *[hidden] * (num_layers - 1), self.NUM_CLASSES]).to(device)
        self._labels = torch.randint(self.NUM_CLASSES, (num_nodes,), device=device)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=1e-3, **of_optimizer)
        self._events: deque[torch.cuda.Event] = deque()

    def step(self, rows: Tensor, blocks: Sequence[Any], seeds: Tensor) -> None:
        """Train one step."""
        self.learn(rows, blocks, self._labels[seeds])
        if rows.is_cuda:
            self.keep_pace()

    def learn(self, rows: Tensor, blocks: Sequence[Any], labels: Tensor) -> None:
        """Change the model by one step."""
        h = self._model(rows, blocks)
        self._optimizer.zero_grad()
        F.cross_entropy(h, labels).backward()
        self._optimizer.step()

    def keep_pace(self) -> None:
        """Note the end of a step on the GPU, and wait for the one STEPS_AHEAD before it."""
        event = torch.cuda.Event()
        event.record()
        self._events.append(event)
        if len(self._events) > self.STEPS_AHEAD:
            self._events.popleft().synchronize()

    def finish(self) -> None:
        """Wait until the GPU has done all steps."""
        while self._events:
            self._events.popleft().synchronize()


def play_device(minibatches: Iterator[Any], step_s: float, seconds: float) -> tuple[float, float, list[float]]:
    """Take minibatches as a device would that is busy for `step_s` with each, and that uses no processor.

    It keeps its last minibatch while it asks for the next.

    Returns:
        (seconds in which it was busy, seconds in all, seconds of each `next`).
    """
    waits: list[float] = []
    began = now = time.perf_counter()
    while now - began < seconds:
        minibatch = next(minibatches)  # noqa: F841 (it is kept)
        got = time.perf_counter()
        waits.append(got - now)
        time.sleep(max(got + step_s - time.perf_counter(), 0.0))
        now = time.perf_counter()
    return len(waits) * step_s, now - began, waits


class Reading:
    """Reads minibatches and measures the processor time of each: a call returns how many were read, and seconds.

    What an epoch takes at its begin, its first minibatch included, is measured apart and divided among its minibatches.
    """

    LEAST_S, SOME = 0.05, 20  # of one measurement, and minibatches between looks at the clock

    def __init__(self, minibatches: Iterable[Any], num_batches: int) -> None:
        self._minibatches, self._num_batches, self._left = minibatches, num_batches, 0

    def __call__(self) -> tuple[int, float]:
        beginning = self._begin()
        done, used = 0, 0.0
        while used < self.LEAST_S:
            count = min(self.SOME, self._left)
            began = time.process_time()
            for _ in range(count):
                next(self._stream)
            used += time.process_time() - began
            done, self._left = done + count, self._left - count
            if self._left == 0:
                beginning = (beginning + self._begin()) / 2
        return done, used * (1 - 1 / self._num_batches) + done * beginning / self._num_batches

    def _begin(self) -> float:
        began = time.process_time()
        self._stream = iter(self._minibatches)
        next(self._stream)
        self._left = self._num_batches - 1
        return time.process_time() - began


class Classification:
    """Training of GraphSAGE to classify nodes by their words; the arrays are read from a folder.

    The folder has indptr, indices, words (int, padded with a word of its own), labels, train and validation (.npy).
    """

    HIDDEN, DROPOUT, LEARNING_RATE = 128, 0.5, 4e-3
    FANOUTS = (10, 10)
    BATCH_SIZE = 1024

    def __init__(self, folder: Path, rng_seed: int) -> None:
        names = ("indptr", "indices", "words", "labels", "validation")
        arrays = {name: torch.from_numpy(np.load(folder / f"{name}.npy")) for name in names}
        self._whole = [Block(arrays["indptr"], arrays["indices"])] * len(self.FANOUTS)
        self._words, self._labels, self._validation = arrays["words"], arrays["labels"], arrays["validation"]
        torch.manual_seed(rng_seed)
        self._encoder = nn.EmbeddingBag(int(self._words.max()) + 1, self.HIDDEN, mode="sum")
        nn.init.normal_(self._encoder.weight, std=0.1)
        num_classes = int(self._labels.max()) + 1
        self._model = GraphSAGE([self.HIDDEN] * len(self.FANOUTS) + [num_classes], self.DROPOUT)
        parameters = [*self._encoder.parameters(), *self._model.parameters()]
        self._optimizer = torch.optim.AdamW(parameters, lr=self.LEARNING_RATE)

    def epoch(self, minibatches: Iterable[tuple[Tensor, Sequence[Any], Tensor]]) -> tuple[float, float]:
        """Train on (words, blocks, seeds) of all minibatches; return the seconds, and those spent in `next`."""
        self._model.train()
        began = asked = time.perf_counter()
        waited = 0.0
        for words, blocks, seeds in minibatches:
            waited += time.perf_counter() - asked
            loss = F.cross_entropy(self._scores(words, blocks), self._labels[seeds])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            asked = time.perf_counter()
        ended = time.perf_counter()
        return ended - began, waited + ended - asked

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of validation nodes that are classified right, with all in-edges."""
        self._model.eval()
        best = self._scores(self._words, self._whole).argmax(1)
        return float((best == self._labels)[self._validation].double().mean())

    def _scores(self, words: Tensor, blocks: Sequence[Any]) -> Tensor:
        h = _drop(self._encoder(words.long()).relu(), self.DROPOUT if self._model.training else 0.0)
        return self._model(h, blocks)
