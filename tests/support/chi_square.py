"""How likely counts are under what is expected of them."""

import torch


def p_value(statistic: float, degrees_of_freedom: int) -> float:
    """The probability that a chi-square variable exceeds `statistic`."""
    half = torch.tensor([degrees_of_freedom, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))
