from plain_cuda import place

__all__ = ["place"]
