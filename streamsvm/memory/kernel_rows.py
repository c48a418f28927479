"""Kernel rows of a store, compiled: the values of one kernel between a row and all support vectors.

Each kernel has a function of its own, which is called by its address: a model compiles its kernel alone, and once.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from streamsvm.kernels import FOURIER, LINEAR, POLY, RBF, Kernel, fourier_row, gaussian_row, product_row
from streamsvm.memory.by_address import BLOCK, by_address
from streamsvm.memory.slots import scan_row
from streamsvm.memory.support_vectors import SupportVectorStore, views

__all__ = ["fill_kernel_row", "kernel_row_of", "set_kernel"]

_address, _call = by_address((BLOCK, types.int64, types.int64, types.float64), types.none)


def set_kernel(store: SupportVectorStore, kernel: Kernel) -> None:
    """Choose the kernel of a store, which is compiled with it."""
    header = store.views.header
    header["kernel"], header["gamma"], header["coef0"], header["degree"] = kernel
    store.views.cache[:2] = 0, _address(_FILL[kernel.kind])


@njit(cache=True, error_model="numpy")
def fill_kernel_row(block: np.ndarray, place: int, n_active: int, norm: float) -> None:
    """Compute the kernel values and squared distances of ``rows[place]`` to all support vectors, into two of ``kernel_rows``.

    Parameters
    ----------
    block
        The store.
    place
        0: the row at hand, to ``kernel_rows[0]`` and ``[1]``; 1: a support vector taken out, to ``[2]`` and ``[3]``.
    n_active, norm
        The number of the row's non-zero features and its squared norm, as `scan_row` returns them.
    """
    address = views(block).cache[1]
    if address == 0:
        raise RuntimeError("the store has no kernel: set_kernel gives it one")
    _call(np.uint64(address), (block, place, n_active, norm))


@njit(cache=True, error_model="numpy")
def _fill_gaussian(block: np.ndarray, place: int, n_active: int, norm: float) -> None:
    v = views(block)
    h = v.header[0]
    gaussian_row(
        h["gamma"],
        v.vectors,
        v.norms,
        h["largest_norm"],
        v.rows[place],
        norm,
        v.active[place],
        n_active,
        h["used"],
        h["n_support"],
        v.kernel_rows[2 * place + 1],
        v.kernel_rows[2 * place],
    )


@njit(cache=True, error_model="numpy")
def _fill_products(block: np.ndarray, place: int, n_active: int, norm: float) -> None:  # noqa: ARG001 - as the others
    v = views(block)
    h = v.header[0]
    row, active, out = v.rows[place], v.active[place], v.kernel_rows[2 * place]
    product_row(h["kernel"], h["gamma"], h["coef0"], h["degree"], v.vectors, row, active, n_active, h["n_support"], out)


@njit(cache=True, error_model="numpy")
def _fill_fourier(block: np.ndarray, place: int, n_active: int, norm: float) -> None:  # noqa: ARG001 - as the others
    v = views(block)
    h = v.header[0]
    sines, cosines = v.kernel_rows[2 * place + 1], v.kernel_rows[2 * place]
    fourier_row(h["gamma"], v.vectors, v.rows[place], v.active[place], n_active, h["n_support"], sines, cosines)


_FILL = {RBF: _fill_gaussian, LINEAR: _fill_products, POLY: _fill_products, FOURIER: _fill_fourier}


@njit(cache=True, error_model="numpy")
def kernel_row_of(block: np.ndarray, slot: int) -> None:
    """Compute the kernel values of a support vector with all, and the squared distances, into ``kernel_rows[2:]``."""
    v = views(block)
    h = v.header[0]
    for j in range(h["used"]):
        v.rows[1, j] = v.vectors[j, slot]
    n_active, norm = scan_row(v.rows[1], h["used"], v.active[1])
    fill_kernel_row(block, 1, n_active, norm)
