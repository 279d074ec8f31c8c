"""What everything stands on and knows no stage: argument checks, errors, the random key, the codec, clocks, threads."""
