"""The logger of the package."""

import logging

logger = logging.getLogger("datapipes")
