"""cached_property of functools, without its lock.

Before Python 3.12 one lock serves all instances of a class. A process that is forked while a thread computes a value
inherits the held lock; its first read waits for ever. Here several threads may compute a value at once; all of them get
the value that was stored first.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property):
        """Decorator of a method that is read as a property: computed at the first read, and kept in the instance."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            kept = instance.__dict__
            return kept[self.attrname] if self.attrname in kept else kept.setdefault(self.attrname, self.func(instance))
