"""Names that other rooms still import from here."""

from simtrain.iteration.programs.pass_tasks import RecentCache

__all__ = ["RecentCache"]
