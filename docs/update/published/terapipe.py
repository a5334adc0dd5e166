"""Times of TeraPipe's iterations on V100s, which no profile is fitted on.

Source: Li et al. 2021, arXiv 2102.07988v2: models and layouts, Table 1; times with and without
TeraPipe of settings (5), (8) and (9), and times by number of slices, the tables of the appendix, as
quoted by others; setting (10) and again (5), zhuohan123/terapipe, flop_model.py at commit bc3e2909.
"""

from dataclasses import dataclass

MODELS = {
    "13B": (40, 5120, 40),
    "44B": (96, 6144, 96),
    "175B": (96, 12288, 96),
}
"""Layers, hidden size and attention heads of 128 channels (of 64 for 44B)."""


@dataclass(frozen=True)
class Setting:
    """A model on p3.16xlarge nodes, and its times with microbatches of one sequence.

    Args:
        number: of the setting in Table 1.
        model: its name.
        pipeline, tensor: sizes of the axes; there is one replica.
        sequences: in an iteration.
        whole_s: time of whole sequences.
        lengths: tokens of TeraPipe's slices.
        sliced_s: time with these slices.
        equal_s: times by number of equal slices.
    """

    number: int
    model: str
    pipeline: int
    tensor: int
    sequences: int
    whole_s: float
    lengths: tuple[int, ...]
    sliced_s: float
    equal_s: tuple[tuple[int, float], ...] = ()


SETTINGS = (
    Setting(5, "13B", 40, 8, 32, 1.863, (704, 688, 656), 1.328),
    Setting(
        *(8, "44B", 48, 8, 8, 2.662, (384, 384, 368, 320, 296, 296), 1.111),
        equal_s=((4, 1.241), (8, 1.255), (16, 1.241)),
    ),
    Setting(
        *(9, "175B", 96, 4, 2, 9.990, (*[120] * 4, *[112] * 6, *[104] * 8, 64), 1.481),
        equal_s=((4, 2.902), (8, 1.892), (16, 1.547), (32, 1.593), (64, 2.227), (128, 3.252)),
    ),
    Setting(10, "175B", 48, 8, 2, 5.822, (128,) * 16, 1.160),
)
"""Setting (10) has 32 slices of two sequences; their lengths are not in the source: equal ones."""
