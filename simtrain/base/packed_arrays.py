"""Arrays of numbers as compact text for scripts, which `base.js` reads (`simtrain.array`)."""

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
    return {"dtype": little.dtype.name, "zlib": base64.b64encode(zlib.compress(planes, 6)).decode()}
