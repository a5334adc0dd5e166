"""Hypothesis strategies for schedules."""

from hypothesis import strategies as st

from simtrain.schedules import Schedule, ScheduleName, build


def schedules() -> st.SearchStrategy[Schedule]:
    """Draw a schedule of any name with up to 6 stages, 3 chunks per stage and 12 microbatches."""

    def build_one(name: ScheduleName, p: int, m: int, groups: int, n: int) -> Schedule:
        if name == "interleaved":
            return build(name, p, m, p * groups)
        return build(name, p, 1, n)

    return st.builds(
        build_one,
        name=st.sampled_from(["gpipe", "1f1b", "interleaved"]),
        p=st.integers(1, 6),
        m=st.integers(1, 3),
        groups=st.integers(1, 3),
        n=st.integers(1, 12),
    )
