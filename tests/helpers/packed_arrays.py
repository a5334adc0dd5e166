"""Reader of the packed arrays of a page, equal to `simtrain.array` of `base.js`."""

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def unpacked(text: dict[str, str]) -> NDArray[Any]:
    """Return the array that `packed` encodes."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text["zlib"])), np.uint8)
    dtype = np.dtype(text["dtype"]).newbyteorder("<")
    return np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T).view(dtype).ravel()
