"""Partitioner under the name that PyG's users import."""

from datapipes.partition.partitioner import Partitioner

__all__ = ["Partitioner"]
