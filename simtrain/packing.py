"""Arrays of numbers as compact text for scripts; `base.js` reads them again (`simtrain.array`)."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def packed(values: NDArray[Any]) -> dict[str, str]:
    """Return an array without loss: its type, and base64 of its compressed bytes.

    The first bytes of all numbers come first, then all second bytes, and so on. Times that follow
    one another share their high bytes, so this makes the text less than half as long.
    """
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<")))
    planes = little.view(np.uint8).reshape(-1, little.itemsize).T.tobytes()
    return {
        "dtype": little.dtype.name,
        "zlib": base64.b64encode(zlib.compress(planes, 6)).decode(),
    }


def unpacked(text: dict[str, str]) -> NDArray[Any]:
    """Return the array that `packed` was given."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(text["zlib"])), np.uint8)
    dtype = np.dtype(text["dtype"]).newbyteorder("<")
    return np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T).view(dtype).ravel()
