"""A feature and a store that note what was read of them."""

import datapipes as dp


class Counted(dp.Feature):
    """Rows of a tensor, which only ids in host memory read, and `asked`, the ids in the order in which they came."""

    def __init__(self, rows, **options):
        self._rows = dp.TensorFeature(rows, **options)
        self.asked = []

    def read(self, ids, out=None):
        self._note(ids)
        return self._rows.read(ids, out)

    def _read_stored(self, ids, out=None):
        self._note(ids)
        return self._rows._read_stored(ids, out)

    def _note(self, ids):
        assert ids.device.type == "cpu"
        self.asked += ids.tolist()

    def _decode(self, rows):
        return self._rows._decode(rows)

    count = property(lambda self: self._rows.count)
    shape = property(lambda self: self._rows.shape)
    dtype = property(lambda self: self._rows.dtype)
    _stored_dtype = property(lambda self: self._rows._stored_dtype)


class CountingStore(dp.FeatureStore):
    """Its `asked` has a list for each call: (domain, type, name, number of ids) for each request."""

    def __init__(self, features):
        super().__init__(features)
        self.asked = []

    def read_many(self, requests):
        self.asked.append([(domain, type_, name, len(ids)) for domain, type_, name, ids in requests])
        return super().read_many(requests)
