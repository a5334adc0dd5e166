"""How tokens reach their experts and come back; `workload.blocks.experts` records the steps."""

from typing import Literal, TypeAlias

from simtrain.base.values import dataclass

ExpertDispatch: TypeAlias = Literal["all_to_all", "all_gather", "deepep", "hybridep"]


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Facts about a way to bring tokens to their experts.

    Args:
        name: what a scenario writes, and the name of its entry in profiles.
        megatron: Megatron-LM's --moe-token-dispatcher-type and --moe-flex-dispatcher-backend.
        torchtitan: torchtitan's name of it; None without.
        overlaps_compute: the shared expert, or a merged pass, can run while it exchanges tokens.
        has_capacity: it can drop and pad tokens to a capacity.
        carries_fp8: tokens can travel in fp8.
        pads_rows: its kernels pad the rows of each expert for products in fp8. Otherwise a kernel
            of the experts does.
        needs_entry: its kernels need an entry in a profile. Others use the library of collectives.
    """

    name: ExpertDispatch
    megatron: tuple[str, str | None]
    torchtitan: str | None = None
    overlaps_compute: bool = True
    has_capacity: bool = False
    carries_fp8: bool = False
    pads_rows: bool = False
    needs_entry: bool = False


DEFAULT = Dispatcher("all_to_all", ("alltoall", None), "standard", has_capacity=True)
DISPATCHERS: dict[str, Dispatcher] = {
    dispatcher.name: dispatcher
    for dispatcher in (
        DEFAULT,
        Dispatcher("all_gather", ("allgather", None), overlaps_compute=False),
        Dispatcher("deepep", ("flex", "deepep"), "deepep", carries_fp8=True, needs_entry=True),
        Dispatcher(
            *("hybridep", ("flex", "hybridep"), "hybridep"),
            carries_fp8=True,
            pads_rows=True,
            needs_entry=True,
        ),
    )
}
