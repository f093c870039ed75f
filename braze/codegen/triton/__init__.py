"""Schedule -> Triton: kernels of walks over rows, columns or squares, products and batches of them, and flex_attention's.

``generate.py`` is the entry; texts run on a GPU and in Triton's interpreter alike. Triton itself
is never imported.
"""

from braze.codegen.triton.generate import generate

__all__ = ["generate"]
