"""The lowest layer, used by all others: argument checks, errors, the random key, the codec, clocks, threads."""
