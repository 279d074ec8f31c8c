"""LocalGraphStore and LocalFeatureStore: stores over one part of a partition, with the methods of PyG's stores."""


def __dir__() -> list[str]:
    return []
