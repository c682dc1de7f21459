"""Snappy, as xprof's tables are compressed with it: the decoder that a library of xprof's own wheel exports."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

_LIBRARY: Final = "convert/events_db/python/libpywrap_events_db_c_api.so"
_SYMBOL: Final = "_ZN6snappy13RawUncompressEPKcmPc"  # bool snappy::RawUncompress(const char*, size_t, char*)


def uncompress(data: memoryview | bytes) -> npt.NDArray[np.uint8]:
    """The bytes that `data` stands for.

    Raises:
        ValueError: it is damaged.
        OSError: this xprof has no such library or function in it.
    """
    size = shift = place = 0
    while True:
        byte = data[place]
        size |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            break
    source = np.frombuffer(data, dtype=np.uint8)
    plain = np.empty(size, dtype=np.uint8)
    if not _decoder()(source.ctypes.data, len(source), plain.ctypes.data):
        raise ValueError("damaged snappy data")
    return plain


@cache
def _decoder() -> Callable[..., bool]:
    spec = find_spec("xprof")
    if spec is None or spec.origin is None:
        raise OSError("xprof is not installed")
    library = ctypes.CDLL(str(Path(spec.origin).parent / _LIBRARY))
    try:
        function: Any = library[_SYMBOL]
    except AttributeError:
        raise OSError(f"{_LIBRARY} exports no {_SYMBOL}") from None
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    function.restype = ctypes.c_bool
    return function  # type: ignore[no-any-return]
