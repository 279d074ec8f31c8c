"""Folders as GraphBolt's two tutorials write them, small and seeded; and one that the names of its files describe."""

from pathlib import Path

import numpy as np
import torch

NODES, EDGES = 30, 120
LIKE, FOLLOW = ("user", "like", "item"), ("user", "follow", "user")


class Folder:
    """A folder that is written: its arrays by the names of their files, and its YAML."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root, self.random = root, np.random.default_rng(seed)
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, name: str, values: np.ndarray) -> str:
        """Write an array by the suffix of its name; return what the YAML says of it."""
        self.arrays[name] = values
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npy"):
            np.save(path, values)
            return f"format: numpy, path: {name}"
        if name.endswith(".pt"):
            torch.save(torch.from_numpy(values), path)
            return f"format: torch, path: {name}"
        np.savetxt(path, values, "%d", ",")
        return f"format: csv, path: {name}"

    def ids(self, *shape: int) -> np.ndarray:
        return self.random.integers(0, NODES, shape)

    def floats(self, *shape: int) -> np.ndarray:
        return self.random.random(shape, dtype=np.float32)

    def yaml(self, text: str) -> Path:
        (self.root / "metadata.yaml").write_text(text)
        return self.root

    def items(self, of: str, name: str, count: int, of_links: bool, last: bool) -> str:
        """Write a set; return its entry in the YAML."""
        kind = f"type: '{of}', " if of else ""
        start = f"{of.replace(':', '-')}-{name}"
        if of_links:
            data = ["{name: node_pairs, " + self.add(f"{start}-pairs.npy", self.ids(count, 2)) + "}"]
            if last:
                data.append("{name: negative_dsts, " + self.add(f"{start}-neg.pt", self.ids(count, 3)) + "}")
        else:
            seeds = self.random.permutation(NODES)[:count]
            data = ["{name: seed_nodes, " + self.add(f"{start}-ids.npy", seeds) + "}"]
            data.append("{name: labels, " + self.add(f"{start}-labels.pt", seeds * 7 % 5) + "}")
        return f"- {{{kind}data: [{', '.join(data)}]}}"

    def task(self, name: str, types: list[str], of_links: bool) -> str:
        lines = [f"  - name: {name}", "    num_classes: 5"]
        for number, part in enumerate(("train", "validation", "test")):
            lines.append(f"    {part}_set:")
            each = [self.items(of, f"{name}-{part}", 10 - number, of_links, number > 0) for of in types]
            lines += [f"      {text}" for text in each]
        return "\n".join(lines)


def homogeneous(root: Path, edges: str = "edges.csv", more: str = "") -> Folder:
    """The tutorial without types: features as .npy and .pt, of nodes and of edges, two tasks."""
    made = Folder(root)
    pairs = made.ids(EDGES, 2)
    text = ["dataset_name: homogeneous", "graph:", f"  nodes: [{{num: {NODES}}}]"]
    text += ["  edges:", "    - {" + made.add(edges, pairs.T if edges.endswith("npy") else pairs) + "}"]
    made.arrays["edges"] = pairs
    text += [more, "feature_data:"]
    for domain, count in (("node", NODES), ("edge", EDGES)):
        for name, suffix in (("feat_0", "npy"), ("feat_1", "pt")):
            said = made.add(f"{domain}-{name}.{suffix}", made.floats(count, 4))
            text.append(f"  - {{domain: {domain}, name: {name}, {said}}}")
        said = made.add(f"{domain}-disk.npy", made.floats(count, 2))
        text.append(f"  - {{domain: {domain}, name: disk, {said}, in_memory: false, unit: metre}}")
    text += ["tasks:", made.task("node_classification", [""], False), made.task("link_prediction", [""], True)]
    made.yaml("\n".join(text))
    return made


def heterogeneous(root: Path) -> Folder:
    """The tutorial with types."""
    made = Folder(root, 1)
    text = ["dataset_name: heterogeneous_graph_nc_lp", "graph:", "  nodes:"]
    text += [f"    - {{type: {of}, num: {NODES}}}" for of in ("user", "item")]
    text.append("  edges:")
    for of in (LIKE, FOLLOW):
        text.append(f"    - {{type: '{':'.join(of)}', {made.add(f'{of[1]}-edges.csv', made.ids(EDGES, 2))}}}")
    text.append("feature_data:")
    for domain, of, count in (
        ("node", "user", NODES),
        ("node", "item", NODES),
        ("edge", "user:like:item", EDGES),
        ("edge", "user:follow:user", EDGES),
    ):
        for name, suffix in (("feat_0", "npy"), ("feat_1", "pt")):
            said = made.add(f"{domain}-{of.replace(':', '-')}-{name}.{suffix}", made.floats(count, 4))
            text.append(f"  - {{domain: {domain}, type: '{of}', name: {name}, {said}}}")
    text += ["tasks:", made.task("node_classification", ["user", "item"], False)]
    text.append(made.task("link_prediction", ["user:like:item", "user:follow:user"], True))
    made.yaml("\n".join(text))
    return made
