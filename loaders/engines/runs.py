"""Where what was chosen lies together, so that it is copied in few pieces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def runs(chosen: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The runs of true values, each as its first index and the one after its last; shape (runs, 2)."""
    return np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False])).astype(np.int8))).reshape(-1, 2)
