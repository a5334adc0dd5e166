"""The user's question: a model, how it is split, a batch, and the machine it runs on.

Fields are the contract of the scenario files. Values that no scenario can have are refused here,
combinations that the training framework refuses in `simtrain.scenario.rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError

from simtrain.mesh import Domains, Mesh
from simtrain.scenario.memory_options import MemoryOptions
from simtrain.scenario.model import Count, Model
from simtrain.scenario.overlap import Overlap
from simtrain.scenario.parallelism import Parallelism, Placement
from simtrain.scenario.precision import Fp8Weights, Precision
from simtrain.scenario.recompute_section import RecomputePolicy
from simtrain.scenario.section import BUILT_IN_PYTHON, IN_PYTHON, Origin, Section
from simtrain.scenario.software_section import Software
from simtrain.scenario.words import MEANT_BY_A_WORD, spell_out_words
from simtrain.software import AttentionBackend, Facts
from simtrain.strict_yaml import (
    Document,
    Positions,
    data_of,
    input_error,
    paths_in,
    section,
    validate,
    with_value,
)

ScheduleName = Literal["gpipe", "1f1b", "interleaved"]


class Batch(Section):
    """How many sequences a pass and an iteration have.

    micro: sequences of a microbatch of one replica.
    global: sequences of an iteration, over all replicas.
    """

    micro: Count = Field(examples=[1])
    global_: Count = Field(validation_alias="global", serialization_alias="global", examples=[64])


def _default_schedule(scenario: dict[str, Any]) -> ScheduleName:
    return "interleaved" if scenario["parallelism"].interleave > 1 else "1f1b"


class Scenario(Section):
    """One question to the simulator.

    name: shown in reports; the file's name by default.
    description: one line that `simtrain scenarios` prints.
    model: the transformer that is trained.
    parallelism: how the model is split over ranks.
    placement: which ranks are neighbours, and so share nodes.
    batch: sequences of a microbatch and of an iteration.
    recompute: which activations are computed again in the backward pass.
    memory: what else trades time for memory.
    software: the framework that runs the model.
    attention_backend: the core of self-attention as five ops that keep the scores, as in the paper
        (unfused), or as one kernel that computes them again in the backward pass (fused,
        FlashAttention). By default the software stack's. Megatron-LM's transformer_config.py.
    schedule: order of forward and backward passes. By default interleaved with several chunks per
        stage, else 1f1b.
    cluster: name or file of the hardware profile.
    hardware: entries of the profile that this scenario sets to other values, such as
        inter_node.adapter_bandwidth: 400 Gb/s.
    precision: what is computed, summed and kept in which dtype.
    overlap: which communication runs beside compute.

    The derived quantities are whole numbers for every scenario that
    `simtrain.scenario.check_scenario` accepts.
    """

    name: str | None = Field(default=None, examples=["my-scenario"])
    description: str | None = Field(default=None, examples=["What this scenario shows"])
    model: Model
    parallelism: Parallelism = Parallelism()
    placement: Placement = Placement()
    batch: Batch
    recompute: RecomputePolicy = Field(default=RecomputePolicy(), examples=["selective"])
    memory: MemoryOptions = MemoryOptions()
    software: Software = Field(default=Software(), examples=["deepspeed_2022"])
    attention_backend: AttentionBackend = Field(
        default_factory=lambda scenario: scenario["software"].facts.attention_backend,
        examples=["fused"],
    )
    schedule: ScheduleName = Field(default_factory=_default_schedule, examples=["1f1b"])
    cluster: str = Field(default="a100_sxm4_80gb", min_length=1, examples=["a100_sxm4_80gb"])
    hardware: dict[str, Any] = Field(default_factory=dict)
    precision: Precision = Precision()
    overlap: Overlap = Overlap()

    _origin: Origin = PrivateAttr(default_factory=lambda: BUILT_IN_PYTHON)

    @classmethod
    def from_document(cls, document: Document) -> Self:
        """The scenario of a document; rules are not checked.

        Raises:
            InputError: all that is wrong with single values.
        """
        document = spell_out_words(document)
        scenario = validate(cls, document.data, document.positions)
        scenario._origin = Origin(document.positions, data_of(scenario))
        return scenario

    def replace(self, changes: Mapping[str, Any]) -> Self:
        """The scenario with some fields set to other values.

        Args:
            changes: values by the dotted names of scenario files, set in this order, such as
                {"parallelism.tensor": 4, "batch.global": 32, "recompute": "full"}. A section, as a
                dict or an object (`Parallelism(tensor=4)`), replaces the whole old section.

        Defaults that follow from other fields (`schedule`, `attention_backend`,
        `model.ffn_hidden_size`, `model.num_query_groups`, `model.kv_channels`, `model.qkv_biases`,
        `parallelism.scatter_gather`) are derived anew. The rules of the framework are not checked;
        `simulate` and `check_scenario` do that.

        Raises:
            InputError: an unknown name, or a value that its field cannot have.
        """
        origin = self._origin
        replaced = list(origin.replaced)
        # Unchanged sections stay objects, which pydantic does not validate again.
        data = {name: vars(self)[name] for name in self.model_fields_set}
        for name, given in changes.items():
            path, value = tuple(name.split(".")), data_of(given, only_set=True)
            if name in MEANT_BY_A_WORD and not isinstance(value, dict):
                value = {MEANT_BY_A_WORD[name]: value}
            if path[0] in data:
                data[path[0]] = data_of(data[path[0]], only_set=True)
            data = with_value(data, path, value, IN_PYTHON)
            replaced += paths_in(value, path)
        try:
            scenario = self.model_validate(data, by_alias=True, by_name=False)
        except ValidationError as error:
            positions = self.positions.moved(replaced, IN_PYTHON)
            raise input_error(error, Scenario, data, positions, "the scenario") from None
        scenario._origin = Origin(origin.positions, origin.data, tuple(replaced))
        return scenario

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, wherever they were written."""
        return isinstance(other, Scenario) and vars(self) == vars(other)

    @property
    def positions(self) -> Positions:
        """Where each field was written; empty for a scenario built in Python.

        Fields that `replace` or `model_copy` changed have no line, but are "changed in Python".
        """
        return self._origin.positions_of(self)

    @property
    def hardware_document(self) -> Document:
        """The overrides of the cluster's profile with their positions, to overlay it with."""
        return section(Document({"hardware": self.hardware}, self.positions), ("hardware",))

    def mesh(self, domains: Domains) -> Mesh:
        """The mesh of ranks on a machine with these `domains` (`Cluster.domains`)."""
        return self.parallelism.mesh(domains, self.placement.order)

    def expert_mesh(self, mesh: Mesh) -> Mesh | None:
        """The mesh by which the ranks of `mesh` hold experts, if the model has any."""
        if self.model.experts is None:
            return None
        return mesh.of_experts(self.parallelism.expert, self.parallelism.ranks_of_expert)

    @property
    def facts(self) -> Facts:
        """How the software stack runs the model."""
        return self.software.facts

    @property
    def in_place_cross_entropy(self) -> bool:
        """Whether the loss subtracts the maximum within the fp32 logits."""
        own = self.memory.in_place_cross_entropy
        return self.facts.in_place_cross_entropy if own is None else own

    @property
    def overlaps_tensor_parallel(self) -> bool:
        """Whether tensor-parallel collectives of the backward pass run beside its products."""
        own = self.overlap.tensor_parallel
        return self.facts.overlap_tensor_parallel if own is None else own

    @property
    def host_issue_s(self) -> float | None:
        """Host time to issue a kernel or a message; None for that of the hardware profile.

        What the scenario says of its hardware counts more than what the stack's file says.
        """
        if self.software.host_issue is None and "issue" in self.hardware.get("host", {}):
            return None
        return self.facts.host_issue

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas: tensor x context x pipeline x data."""
        return self.parallelism.mesh().num_ranks

    @property
    def num_microbatches(self) -> int:
        """Microbatches that each replica runs in an iteration."""
        return self.batch.global_ // (self.batch.micro * self.parallelism.data)

    @property
    def fully_shards(self) -> bool:
        """Whether parameters are divided by PyTorch's fully_shard."""
        return self.memory.zero_stage == 3 and self.facts.fully_shard

    @property
    def fp8_recipe(self) -> str:
        """The recipe of `workload.fp8` by which products of linear layers are in fp8, or ""."""
        if self.precision.compute != "fp8":
            return ""
        return "torchao" if self.uses_torchao else self.precision.fp8_recipe

    @property
    def uses_torchao(self) -> bool:
        """Whether fp8 is that of torchao and not of Transformer Engine."""
        return self.software.stack.startswith("torchtitan")

    @property
    def fp8_weights(self) -> Fp8Weights:
        """Where fp8 products find their weights."""
        if self.precision.fp8_parameters and self.memory.zero_stage == 3:
            return "gathered"
        return "cast" if self.uses_torchao else "cached"

    @property
    def reduces_every_microbatch(self) -> bool:
        """Whether with ZeRO 2 or 3 each backward pass reduces gradients.

        Without a pipeline the last one always does.
        """
        alone = self.num_microbatches == self.parallelism.pipeline == 1
        return self.memory.reduce_every_microbatch or alone

    @property
    def num_chunks(self) -> int:
        """Chunks (virtual stages) of each stage."""
        return self.parallelism.interleave

    def layers_of_stage(self, stage: int) -> int:
        """Transformer layers of a stage: its own number, or its share of what those leave."""
        return self.parallelism.layers_of_stage(stage, self.model.num_layers)

    def layers_of_chunk(self, virtual_stage: int) -> int:
        """Transformer layers of a chunk: its stage's, divided evenly over the stage's chunks.

        As in Megatron-LM (transformer_block.get_num_layers_to_build).
        """
        return self.layers_of_stage(virtual_stage % self.parallelism.pipeline) // self.num_chunks

    @property
    def stage_sizes(self) -> tuple[int, ...]:
        """The different numbers of layers that stages have, ascending: at most three."""
        last = self.parallelism.pipeline - 1
        return tuple(sorted({self.layers_of_stage(stage) for stage in (0, min(1, last), last)}))

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The different numbers of layers that chunks have, ascending: at most three."""
        return tuple(sorted({size // self.num_chunks for size in self.stage_sizes}))

    @property
    def compute_bytes(self) -> int:
        """Bytes of a weight or an activation."""
        return self.precision.compute_bytes

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of the gradient that is summed over microbatches and reduced."""
        return self.precision.gradient_bytes

    @property
    def strategy(self) -> str:
        """The paper's name of the memory strategy: baseline, sequence, selective+sequence, ..."""
        recompute = self.recompute.strategy
        recomputed = [] if recompute == "none" else [recompute]
        sequence = ["sequence"] if self.parallelism.sequence_parallel else []
        return "+".join(recomputed + sequence) or "baseline"
