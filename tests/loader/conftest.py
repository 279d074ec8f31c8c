import pytest
import torch


@pytest.fixture
def one_gpu(monkeypatch):
    """Make torch report one GPU: loaders can be built, but not run."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
