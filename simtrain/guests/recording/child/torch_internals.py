"""The places of torch that its documentation does not promise, in one table.

Other modules of this package import private objects from here, by torch's names without leading
underscores. The sources of torch 2.7 to 2.13 were read for the ranges. A newer release is used as
long as it has a place. If it lacks one, the recording ends with E954, or goes on as the row says.
"""

from __future__ import annotations

import operator
import pkgutil
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import torch

from simtrain.guests.recording.child.problems import Unrecordable


@dataclass(frozen=True, slots=True)
class Place:
    """Private attributes of a module or a class of torch.

    Args:
        owner: dotted name of the module or the class.
        names: its attributes.
        why: what a recording needs them for.
        how: they are imported, read from instances of the class, replaced while a program runs, or
            replaced in every module that has imported them.
        since, until: the first and the last release that has them.
        otherwise: what a recording does without them; empty if it cannot do without.
        stand_in: what replaces them.
    """

    owner: str
    names: tuple[str, ...]
    why: str
    how: Literal["import", "read", "replace", "replace everywhere"] = "import"
    since: str = "2.7"
    until: str = "2.13"
    otherwise: str = ""
    stand_in: Any = None

    def has(self, name: str) -> bool:
        """Whether the installed torch has an attribute, or its instances get it."""
        try:
            owner = pkgutil.resolve_name(self.owner)
        except (ImportError, AttributeError):
            return False
        init = getattr(getattr(owner, "__init__", None), "__code__", None)
        of_instances = *getattr(owner, "__annotations__", ()), *getattr(init, "co_names", ())
        return hasattr(owner, name) or (self.how == "read" and name in of_instances)

    def find(self, name: str) -> Any:
        """Return an attribute, or the function that reads it from an instance.

        Raises:
            Unrecordable: the installed torch lacks it, and a recording cannot do without.
        """
        if not self.otherwise and not self.has(name):
            why = f"it has no {self.owner}.{name}: {self.why}"
            fix = f"install a torch from {self.since} to {self.until}"
            raise Unrecordable(f"torch {torch.__version__}", why, fix)
        if self.how == "read" and self.otherwise:
            return lambda instance: getattr(instance, name, None)
        if self.how == "read":
            return operator.attrgetter(name)
        return getattr(pkgutil.resolve_name(self.owner), name) if self.has(name) else None


def _chooses_foreach(
    parameters: list[torch.Tensor], differentiable: bool, use_fused: bool = False
) -> tuple[bool, bool]:
    """Choose as on a GPU: kernels over many parameters, unless these are DTensors."""
    plain = torch.nn.Parameter, _FOUND["FakeTensor"]
    return False, not differentiable and all(isinstance(each, plain) for each in parameters)


PLACES = (
    Place(
        "torch._subclasses.fake_tensor",
        ("FakeTensor", "FakeTensorMode", "unset_fake_temporarily", "DynamicOutputShapeException"),
        "tensors without elements; `constant`, `fake_device` and `cache_clear` are used",
    ),
    Place(
        "torch.utils._python_dispatch",
        ("TorchDispatchMode",),
        "it sees each op below autograd; `_should_skip_dynamo` is overridden",
    ),
    Place("torch._C", ("_DisableTorchDispatch",), "marks of profilers run on no tensors"),
    Place(
        "torch._C",
        ("_unset_dispatch_mode", "_set_dispatch_mode", "_TorchDispatchModeKey"),
        "what `unset_fake_temporarily` does, which takes longer than most functions of meshes",
    ),
    Place("torch._C._autograd", ("_get_sequence_nr",), "the module of the node of a forward op"),
    Place("torch._C", ("_current_autograd_node",), "the module of an op of the backward pass"),
    Place("torch._C._FunctionBase", ("_sequence_nr",), "the forward op of a node", "read"),
    Place(
        "torch._ops.OpOverload", ("_schema",), "names of arguments, and which are written", "read"
    ),
    Place("torch.UntypedStorage", ("_cdata",), "identifies storages, which views share", "read"),
    Place("torch.utils._pytree", ("tree_leaves", "tree_map"), "tensors in nested arguments"),
    Place(
        "torch.distributed._tools.fake_collectives",
        ("CollectiveOp", "collective_ops", "sync_ops"),
        "which ops are collectives, of which group, and which wait for one",
    ),
    Place(
        "torch.testing._internal.distributed.fake_pg", ("FakeStore",), "ranks that are not there"
    ),
    Place("torch.distributed.tensor.DTensor", ("_local_tensor",), "a rank's part", "read"),
    Place(
        "torch.autograd.Variable",
        ("_execution_engine",),
        "`queue_callback`: replicas wait for their buckets after the backward pass",
    ),
    Place("torch.distributed.fsdp.FSDPModule", ("_get_fsdp_state",), "groups, as below", "read"),
    Place(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState",
        ("_fsdp_param_groups",),
        "parameters that are gathered together (`fsdp_params`)",
        "read",
        since="2.12",
        otherwise="`_fsdp_param_group` has them",
    ),
    Place(
        "torch.distributed.fsdp._fully_shard._fsdp_state.FSDPState",
        ("_fsdp_param_group",),
        "parameters that are gathered together, if a module has one group",
        "read",
        otherwise="`_fsdp_param_groups` has them",
    ),
    Place(
        "torch.distributed.fsdp._fully_shard._fsdp_param.FSDPParam",
        ("_unsharded_param", "unsharded_accumulated_grad"),
        "gradients that are not reduced yet",
        "read",
        otherwise="a parameter has none before it is gathered",
    ),
    Place(
        "torch.optim.optimizer",
        ("_default_to_fused_or_foreach",),
        "optimizers choose as on GPUs",
        "replace everywhere",
        otherwise="they choose as on CPUs: kernels for each parameter",
        stand_in=_chooses_foreach,
    ),
    Place(
        "torch.utils",
        ("weakref",),
        "Module.to swaps only tensors without references, which fake ones have",
        "replace",
        otherwise="programs that call Module.to with another type may fail",
        stand_in=SimpleNamespace(getweakrefs=lambda tensor: []),
    ),
)
_FOUND = {name.lstrip("_"): place.find(name) for place in PLACES for name in place.names}


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
else:
    globals().update(_FOUND)
