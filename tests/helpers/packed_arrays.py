"""Reads the packed arrays of a page, as `simtrain.array` of `base.js` does."""

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpacked(text: dict[str, str]) -> NDArray[Any]:
    """The array that `packed` was given."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text["zlib"])), np.uint8)
    dtype = np.dtype(text["dtype"]).newbyteorder("<")
    return np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T).view(dtype).ravel()
