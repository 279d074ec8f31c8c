"""Import torch_geometric, or say how to get it. No other module of the package needs it to be imported."""

from __future__ import annotations

import warnings

from datapipes.base.errors import pip_install

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # about how PyG itself uses torch and typing
        from torch_geometric.data import EdgeAttr as EdgeAttr
        from torch_geometric.data import FeatureStore as FeatureStore
        from torch_geometric.data import GraphStore as GraphStore
        from torch_geometric.data import TensorAttr as TensorAttr
        from torch_geometric.data.graph_store import EdgeLayout as EdgeLayout
except ModuleNotFoundError as error:
    if error.name != "torch_geometric":
        raise
    raise ModuleNotFoundError(
        "datapipes.distributed.pyg needs torch_geometric, which is not installed. Install it: "
        f"{pip_install('torch_geometric', 'pyg')}; or use the stores of datapipes.distributed, which do without it.",
        name="torch_geometric",
    ) from error
