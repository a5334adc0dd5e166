"""Hypothesis strategies for schedules."""

from hypothesis import strategies as st

from simtrain.schedules import NAMED, Schedule, build


def schedules() -> st.SearchStrategy[Schedule]:
    """Draw a schedule of any name with up to 6 stages, 3 chunks per stage and 12 microbatches."""

    def build_one(name: str, p: int, m: int, groups: int, n: int) -> Schedule:
        family, unit = NAMED[name], NAMED[name].group_size(p)
        return build(name, p, m if family.has_chunks else 1, groups * unit if unit > 1 else n)

    return st.builds(
        build_one,
        name=st.sampled_from([*NAMED]),
        p=st.integers(1, 6),
        m=st.integers(1, 3),
        groups=st.integers(1, 3),
        n=st.integers(1, 12),
    )
