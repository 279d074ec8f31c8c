"""Train GraphSAGE with Lightning on the packages of Debian, by PyG's LightningNodeData and a sampler of either kind.

Run: python examples/pyg/lightning_sage.py [--loader pyg]

PyG's data module builds its own NodeLoader for each part of the split, around the sampler that it is given. For
validation and test it sets another `num_neighbors` on a copy of that sampler.
"""

import torch
import torch.nn.functional as F
from lightning import LightningModule, Trainer
from pyg_data import arguments, debian_packages
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningNodeData
from torch_geometric.nn import GraphSAGE

args = arguments(__doc__, epochs=3, data=None)
if args.loader == "datapipes":
    from datapipes.pyg.sampler import NeighborSampler
else:
    from torch_geometric.sampler import NeighborSampler


class Model(LightningModule):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.gnn = GraphSAGE(in_channels, 128, num_layers=2, out_channels=out_channels, dropout=0.2)

    def forward(self, batch: Data) -> tuple[Tensor, Tensor]:
        """Return the scores and the labels of the seeds."""
        return self.gnn(batch.x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]

    def training_step(self, batch: Data, batch_idx: int) -> Tensor:
        return F.cross_entropy(*self(batch))

    def validation_step(self, batch: Data, batch_idx: int) -> None:
        self._log_accuracy("validation accuracy", batch)

    def test_step(self, batch: Data, batch_idx: int) -> None:
        self._log_accuracy("test accuracy", batch)

    def _log_accuracy(self, name: str, batch: Data) -> None:
        scores, y = self(batch)
        self.log(name, (scores.argmax(dim=-1) == y).float().mean(), batch_size=batch.batch_size)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.005)


torch.manual_seed(args.seed)
data = debian_packages()
datamodule = LightningNodeData(
    data,
    input_train_nodes=data.train_mask,
    input_val_nodes=data.val_mask,
    input_test_nodes=data.test_mask,
    node_sampler=NeighborSampler(data, num_neighbors=[10, 5]),
    eval_loader_kwargs={"num_neighbors": [20, 10], "batch_size": 2048},
    batch_size=512,
    num_workers=args.workers,
    pin_memory=False,
)
model = Model(data.num_features, int(data.y.max()) + 1)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=args.epochs,
    num_sanity_val_steps=0,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, datamodule)
print(f"validation accuracy {float(trainer.callback_metrics['validation accuracy']):.4f}")
trainer.test(model, datamodule, verbose=False)
print(f"test accuracy {float(trainer.callback_metrics['test accuracy']):.4f}")
