"""The scenario: a model, its parallelism, a batch, and the cluster that trains it.

The fields define the format of scenario files. This module refuses invalid single values;
`simtrain.scenario.rules` refuses combinations that the training framework does not support.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import (
    AfterValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    model_validator,
)

from simtrain.base.input_file import FileVersion
from simtrain.base.mesh import Domains, Mesh
from simtrain.base.plug_ins import Parts
from simtrain.base.strict_yaml import (
    FieldError,
    Positions,
    YamlDocument,
    data_of,
    input_error,
    leaves,
    paths_in,
    section,
    validate,
    with_value,
)
from simtrain.base.values import replace
from simtrain.errors import InputError, Location
from simtrain.scenario.dispatchers import DEFAULT, DISPATCHERS, ExpertDispatch
from simtrain.scenario.model import Model
from simtrain.scenario.other_names import other_values
from simtrain.scenario.parallelism import ChunkContents, Parallelism, Placement
from simtrain.scenario.section import (
    BUILT_IN_PYTHON,
    BYTES_OF,
    IN_PYTHON,
    MEANT_BY_A_WORD,
    Count,
    Fp8Weights,
    GradientType,
    MemoryOptions,
    Origin,
    Overlap,
    Precision,
    RecomputePolicy,
    Section,
    derived,
    is_change,
    spell_out_words,
)
from simtrain.scenario.software import (
    AttentionBackend,
    Circumstances,
    Kernels,
    Software,
    StackFacts,
)
from simtrain.scenario.variation_section import Variation
from simtrain.schedules import FAMILIES, NAMED, default_name, family_of, read_schedule
from simtrain.schedules.family import Order, OrderOptions, ScheduleFamily
from simtrain.schedules.schedule import Schedule
from simtrain.schedules.stage_placement import StagePlacement

# A program of the user's own in place of a model: the door by which its reader plugs in.
#
# A scenario names a file, as in `program: gpt.program.json.gz`. An entry point of
# "simtrain.programs" names the `ProgramReader` that knows these files; no room of the core does.
# Model, batch, layout and data types are those of the program, and what decides its ops is refused.

PROGRAM_FIELDS: Final = (
    *("name", "description", "program", "software", "cluster", "hardware", "variation"),
)
"""Fields that a scenario with a program may set."""
PROGRAM_REFUSAL: Final = (
    "a recorded program has its own: only software, cluster, hardware and variation can be set "
    "beside it"
)


class ProgramReader(ABC):
    """Reads the files of programs."""

    name: ClassVar[str]

    @abstractmethod
    def settings(self, file: FileVersion) -> Mapping[str, Any]:
        """Return the sections that follow from a program, as in scenario files.

        Raises:
            InputError: the file has no program.
        """

    @abstractmethod
    def step(self, file: FileVersion, domains: Domains, kernels: Kernels) -> object:
        """Return the training step (`workload.recorded_step.RecordedStep`) of a program.

        Args:
            file: the program.
            domains: of the cluster.
            kernels: of the software stack.
        """


READERS: Parts[ProgramReader] = Parts("programs", ProgramReader, ())


def program_reader(file: str) -> ProgramReader:
    """Return the reader of a program; raises InputError if none is installed (E740)."""
    for reader in READERS.values():
        return reader
    fix = "install simtrain with its guests again, or describe a model in place of a program"
    raise InputError.of("E740", "nothing that is installed reads programs", Location(file), fix)


class StackDefault(NamedTuple):
    """The default of a field: an entry of the software stack, and the property that resolves it."""

    entry: str
    resolved: str


STACK_DEFAULTS = {
    "memory.in_place_cross_entropy": StackDefault(
        "in_place_cross_entropy", "in_place_cross_entropy"
    ),
    "overlap.tensor_parallel": StackDefault("overlap_tensor_parallel", "overlaps_tensor_parallel"),
    "overlap.pipeline": StackDefault("overlap_pipeline", "overlaps_pipeline"),
    "overlap.data_parallel": StackDefault("overlap_data_parallel", "overlaps_data_parallel"),
    "overlap.parameter_gather": StackDefault(
        "overlap_parameter_gather", "overlaps_parameter_gather"
    ),
    "overlap.align_gradient_reduction": StackDefault(
        "align_gradient_reduction", "aligns_gradient_reduction"
    ),
    "overlap.align_parameter_gather": StackDefault(
        "align_parameter_gather", "aligns_parameter_gather"
    ),
    "precision.gradients": StackDefault("gradients", "gradient_type"),
    "parallelism.expert_dispatch": StackDefault("expert_dispatch", "expert_dispatch"),
    "overlap.merged_passes": StackDefault("merged_passes", "wants_merged_passes"),
    "overlap.delayed_weight_gradients": StackDefault(
        "delayed_weight_gradients", "delays_weight_gradients"
    ),
    "precision.fp8_parameters": StackDefault("frozen_fp8_recipes", "keeps_fp8_parameters"),
}
"""Fields whose default is the software stack's."""

_SCHEDULE_SUFFIX = ".csv"
_LABELS = "name", "description"

_MOST_DOCUMENTS = 10_000
_Lengths = Annotated[
    tuple[Count, ...], Field(strict=False, min_length=1, max_length=_MOST_DOCUMENTS)
]


class Batch(Section):
    """Batch sizes in sequences.

    micro: number of sequences in a microbatch of one replica.
    global: number of sequences in an iteration, over all replicas.
    packed_lengths: tokens of the documents that each sequence packs, such as [512] or
        [1024, 512, 512]. They repeat until the sequence is full, and the last one is cut. Attention
        stays within each document (kernels for variable lengths; Megatron-LM's THD format). By
        default (null), it spans whole sequences, also if these pack documents.
    """

    micro: Count = Field(examples=[1])
    global_: Count = Field(validation_alias="global", serialization_alias="global", examples=[64])
    packed_lengths: _Lengths | None = Field(default=None, examples=["[512]"])


def _readable_schedule(file: str) -> str:
    read_schedule(FileVersion.of(file))
    return file


if TYPE_CHECKING:
    _ScheduleName = str
else:
    _ScheduleName = Literal[tuple(NAMED)]  # so that errors and the JSON schema list the names

# A schedule by name, or the path of a file. The tag makes pydantic report one error.
_Schedule = Annotated[
    Annotated[_ScheduleName, Tag("name")]
    | Annotated[
        str,
        Field(json_schema_extra={"pattern": rf"\{_SCHEDULE_SUFFIX}$"}),
        AfterValidator(_readable_schedule),
        Tag("file"),
    ],
    Discriminator(lambda value: "file" if str(value).endswith(_SCHEDULE_SUFFIX) else "name"),
]


def _default_schedule(scenario: dict[str, Any]) -> str:
    return default_name(scenario["parallelism"].interleave)


class Scenario(Section):
    """A training run to simulate: model, parallelism, batch, options and cluster.

    name: name in reports; by default, the name of the file.
    description: one line that `simtrain show scenarios` prints.
    program: path of a torch program that simtrain import --record has recorded, relative to the
        scenario's file. It takes the place of the model, and has its own batch, layout and data
        types: with it, only software, cluster, hardware and variation can be set.
    model: the transformer to train.
    parallelism: how the model is split over ranks.
    placement: how ranks are numbered, which decides the ranks that share a node.
    batch: number of sequences in a microbatch and in an iteration.
    recompute: which activations are recomputed in the backward pass.
    memory: options that trade time for memory, besides recompute.
    software: the framework that runs the model, and its kernels.
    attention_backend: how core attention runs. unfused runs five ops that save the scores, as in
        the paper; fused runs one kernel that recomputes them in the backward pass (FlashAttention).
        The software stack sets the default (Megatron-LM's transformer_config.py).
    schedule: order of forward and backward passes: its name (simtrain show model), or
        the path of a CSV file in the format of PyTorch's pipelining (torchtitan's
        pipeline_parallel_schedule_csv), relative to the scenario's file. The default is interleaved
        with several chunks per stage, otherwise 1f1b.
    cluster: name or path of the hardware profile; a100_sxm4_80gb by default.
    hardware: entries of the hardware profile to override, such as inter_node.adapter_bandwidth: 400
        Gb/s. Its section scale has factors of whole resources, such as network_bandwidth: 2.
    precision: dtypes of compute, gradients and optimizer states.
    overlap: which communication overlaps with compute.
    variation: what differs between ranks, replicas and iterations.

    Derived quantities, such as num_microbatches, are exact for every scenario that
    `simtrain.scenario.check_scenario` accepts.
    """

    __slots__ = ("_derived",)

    other_values = staticmethod(other_values)

    name: str | None = Field(default=None, examples=["my-scenario"])
    description: str | None = Field(default=None, examples=["What this scenario shows"])
    program: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, examples=["gpt.program.json.gz"]
    )
    model: Model
    parallelism: Parallelism = Parallelism.model_construct()
    placement: Placement = Placement.model_construct()
    batch: Batch
    recompute: RecomputePolicy = Field(RecomputePolicy.model_construct(), examples=["selective"])
    memory: MemoryOptions = MemoryOptions.model_construct()
    software: Software = Field(Software.model_construct(), examples=["deepspeed_2022"])
    attention_backend: AttentionBackend = Field(
        default_factory=lambda scenario: scenario["software"].facts_for(None).attention_backend,
        examples=["fused"],
    )
    schedule: _Schedule = Field(default_factory=_default_schedule, examples=["1f1b"])
    cluster: str = Field(default="a100_sxm4_80gb", min_length=1, examples=["a100_sxm4_80gb"])
    hardware: dict[str, Any] = Field(default_factory=dict)
    precision: Precision = Precision.model_construct()
    overlap: Overlap = Overlap.model_construct()
    variation: Variation = Variation.model_construct()

    _origin: Origin = PrivateAttr(default_factory=lambda: BUILT_IN_PYTHON)
    _notes: tuple[str, ...] = PrivateAttr(default=())

    @model_validator(mode="before")
    @classmethod
    def _take_settings_of_program(cls, data: Any) -> Any:
        """Add the sections that follow from a recorded program."""
        file = data.get("program") if isinstance(data, Mapping) else None
        if not isinstance(file, str) or not file:
            return data
        settings = dict(program_reader(file).settings(FileVersion.of(file)))
        for name, value in data.items():
            is_part = isinstance(value, Mapping) and isinstance(settings.get(name), Mapping)
            settings[name] = {**settings[name], **value} if is_part else value
        return settings

    @model_validator(mode="after")
    def _keep_settings_of_program(self) -> Self:
        """Refuse other values than those of the recorded program, which stay unset."""
        if self.program is None:
            return self
        assert self.program_file is not None, "the scenario has a program"
        derived = program_reader(self.program).settings(self.program_file)
        for name, field in type(self).model_fields.items():
            if name in PROGRAM_FIELDS:
                continue
            section, default = field.annotation, derived.get(name, field.default)
            if name in derived and isinstance(section, type) and issubclass(section, Section):
                default = section(**default)
            is_known = name in derived or not field.default_factory
            if is_known and getattr(self, name) != default:
                fix = f"remove {name}, or record the program again with other arguments"
                raise FieldError((name,), PROGRAM_REFUSAL, fix)
            self.model_fields_set.discard(name)
        return self

    @model_validator(mode="after")
    def _take_chunks_of_schedule(self) -> Self:
        """Set `parallelism.interleave`, if it is not written, to what the schedule needs."""
        split, file = self.parallelism, self.schedule_file
        number = file.placement.interleave if file else NAMED[self.schedule].num_chunks or 1
        if "interleave" not in split.model_fields_set and number != split.interleave:
            # Scenarios share sections, so a copy is changed. The field stays unset, as a default.
            vars(self)["parallelism"] = split = split.model_copy()
            vars(split)["interleave"] = number
        return self

    @classmethod
    def from_document(cls, document: YamlDocument) -> Self:
        """Build the scenario of a document without checking the rules on combinations.

        Raises:
            InputError: every invalid single value.
        """
        document = spell_out_words(document)
        scenario = validate(cls, document.data, document.positions)
        scenario._origin = Origin(document.positions, data_of(scenario))
        return scenario

    def replace(self, changes: Mapping[str, Any]) -> Self:
        """Return a copy of the scenario with some fields changed.

        Args:
            changes: values by their dotted names in scenario files, applied in this order, such as
                {"parallelism.tensor": 4, "batch.global": 32, "recompute": "full"}. A dict or a
                section object (`Parallelism(tensor=4)`) replaces the whole section.

        Defaults that follow from other fields (`schedule`, `attention_backend`,
        `model.ffn_hidden_size`, `model.num_query_groups`, `model.kv_channels`, `model.qkv_biases`,
        `parallelism.interleave`, `parallelism.scatter_gather`) are derived again, as are those of
        the software stack. The rules on combinations are not checked here, but by `simulate` and
        `check_scenario`.

        Raises:
            InputError: unknown names and invalid values.
        """
        if not isinstance(changes, Mapping):
            fix = 'write scenario.replace({"parallelism.tensor": 4})'
            raise InputError.of("E114", f"changes is {changes!r:.80}, not a dict", fix=fix)
        origin = self._origin
        replaced = list(origin.replaced)
        # Unchanged sections stay objects: pydantic does not validate them again.
        data = {name: vars(self)[name] for name in self.model_fields_set}
        for name, change in changes.items():
            path, value = tuple(name.split(".")), data_of(change, only_set=True)
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
        scenario._notes = self._notes
        return scenario

    def with_notes(self, notes: Sequence[str]) -> Self:
        scenario = self.model_copy()
        scenario._notes = tuple(notes)
        return scenario

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    def __repr__(self) -> str:
        gpus = f"{self.num_gpus:,} GPUs of {self.cluster}"
        return f"<Scenario {self.name or 'unnamed'}: {gpus}, {self.strategy}>"

    def __eq__(self, other: object) -> bool:
        """Whether all values are equal, regardless of their positions in files."""
        return isinstance(other, Scenario) and vars(self) == vars(other)

    @property
    def positions(self) -> Positions:
        """Position of each field in its file; empty for a scenario built in Python.

        A field changed by `replace` or `model_copy` has the position "changed in Python".
        """
        return self._origin.positions_of(self)

    @property
    def changed_values(self) -> dict[str, Any]:
        """Values that were changed after the file was read, by their dotted names.

        They were changed by `--set`, by `replace` or by `model_copy`. For a scenario built in
        Python they are the values that `replace` changed. Name and description are left out.
        """
        places = self.positions.places
        return {
            ".".join(map(str, path)): value
            for path, value in leaves(data_of(self, only_set=True))
            if path in places and is_change(places[path].value) and path[0] not in _LABELS
        }

    @property
    def hardware_document(self) -> YamlDocument:
        return section(YamlDocument({"hardware": self.hardware}, self.positions), ("hardware",))

    def mesh(self, domains: Domains) -> Mesh:
        """Return the mesh of ranks on a cluster with these `domains` (`Cluster.domains`)."""
        mesh, copies = self.parallelism.mesh(domains, self.placement.order), self.model_copies
        return mesh if copies == 1 else replace(mesh, copies=copies)

    def expert_mesh(self, mesh: Mesh) -> Mesh | None:
        if self.model.experts is None:
            return None
        return mesh.of_experts(self.parallelism.expert, self.parallelism.ranks_of_expert)

    @derived
    def checks(self) -> set[str]:
        """Names of the checks that the scenario has passed."""
        return set()

    @derived
    def program_file(self) -> FileVersion | None:
        return None if self.program is None else FileVersion.of(self.program)

    @derived
    def facts(self) -> StackFacts:
        return self.software.facts_for(self.circumstances)

    @property
    def circumstances(self) -> Circumstances:
        """What decides which entries of the software stack's releases hold."""
        precision = self.precision
        recipe = "nvfp4" if precision.compute == "fp4" else precision.fp8_recipe
        return Circumstances(
            self.cluster,
            self.model.experts is not None,
            self.parallelism.pipeline > 1,
            recipe if precision.casts else precision.compute,
            self.model.lora is not None,
            self.model.hidden_size,
            self.memory.zero_stage == 3,
        )

    @property
    def in_place_cross_entropy(self) -> bool:
        written = self.memory.in_place_cross_entropy
        return self.facts.in_place_cross_entropy if written is None else written

    @property
    def overlaps_tensor_parallel(self) -> bool:
        written = self.overlap.tensor_parallel
        return self.facts.overlap_tensor_parallel if written is None else written

    @property
    def overlaps_pipeline(self) -> bool:
        """Whether stages send asynchronously.

        Megatron-LM does so only in the interleaved schedule; orders from files run in PyTorch's
        runtime, which never blocks.
        """
        if self.overlap.pipeline is not None:
            return self.overlap.pipeline
        family = self.schedule_family
        return not family.blocks or (family.overlaps and self.facts.overlap_pipeline)

    @property
    def overlaps_data_parallel(self) -> bool:
        """Whether the gradient reduction overlaps with the backward pass.

        By default it does not if it would cut a merged pass of a schedule from a file (E436).
        """
        if self.overlap.data_parallel is not None:
            return self.overlap.data_parallel
        schedule = self.schedule_file
        refuses = schedule is not None and schedule.merges_ends
        return self.facts.overlap_data_parallel and not refuses

    @property
    def overlaps_parameter_gather(self) -> bool:
        """Whether the distributed optimizer gathers parameters during the next forward passes."""
        if self.overlap.parameter_gather is not None:
            return self.overlap.parameter_gather
        is_possible = self.memory.zero_stage == 1 and self.overlaps_data_parallel
        return is_possible and self.facts.overlap_parameter_gather

    @property
    def gradient_type(self) -> GradientType:
        """The dtype in which gradients are accumulated and reduced.

        A stack's type applies to weights of this type; others have gradients in fp32 (E315).
        """
        if self.precision.gradients is not None:
            return self.precision.gradients
        of_stack = self.facts.gradients
        return of_stack if of_stack == self.precision.weights else "fp32"

    @property
    def keeps_fp8_parameters(self) -> bool:
        """Whether weights of fp8 products are kept or gathered in fp8.

        A stack's default for trained weights applies to layouts and states that can have it.
        """
        if self.precision.fp8_parameters is not None:
            return self.precision.fp8_parameters
        if self.model.lora is not None:
            return self.fp8_recipe in self.facts.frozen_fp8_recipes
        is_possible = self.can_train_fp8_weights and self.precision.main_parameters == "fp32"
        is_simulated = self.memory.zero_stage != 3 or self.fp8_recipe != "mxfp8"  # E385
        return is_possible and is_simulated and self.fp8_recipe in self.facts.trained_fp8_recipes

    @property
    def can_train_fp8_weights(self) -> bool:
        """Whether ranks update shards of weights that are kept or gathered in fp8."""
        if self.uses_torchao:
            return self.fully_shards
        return self.memory.zero_stage in (1, 3) and not self.fully_shards

    @property
    def gradient_bytes(self) -> int:
        return BYTES_OF[self.gradient_type]

    @property
    def aligns_gradient_reduction(self) -> bool:
        """Whether all stages start to reduce the gradients of a chunk at about the same time."""
        if self.overlap.align_gradient_reduction is not None:
            return self.overlap.align_gradient_reduction
        is_possible = self.parallelism.pipeline > 1 and self.reduces_in_buckets
        is_possible = is_possible and self.schedule_family.aligns_reductions
        return is_possible and self.facts.align_gradient_reduction

    @property
    def aligns_parameter_gather(self) -> bool:
        """Whether all stages start to gather the parameters of a chunk at about the same time."""
        if self.overlap.align_parameter_gather is not None:
            return self.overlap.align_parameter_gather
        is_possible = self.overlaps_parameter_gather and self.schedule_family.gathers_by_chunk
        return is_possible and self.facts.align_parameter_gather

    @property
    def expert_dispatch(self) -> ExpertDispatch:
        """The dispatcher of tokens to experts.

        The stack's is not taken if its rules refuse it (E482, E489, E496).
        """
        split, experts = self.parallelism, self.model.experts
        if split.expert_dispatch is not None:
            return split.expert_dispatch
        dispatcher = DISPATCHERS[self.facts.expert_dispatch]
        is_possible = experts is not None and (
            (dispatcher.has_capacity or experts.capacity_factor is None)
            and (dispatcher.overlaps_compute or not self.overlap.shared_expert)
            and (not dispatcher.needs_entry or split.expert * split.ranks_of_expert > 1)
        )
        return dispatcher.name if is_possible else DEFAULT.name

    @derived
    def wants_merged_passes(self) -> bool:
        """Whether a schedule that can merge passes does.

        By default it does not in layouts that are refused (E431 to E435, and rules of offloading).
        """
        if self.overlap.merged_passes is not None:
            return self.overlap.merged_passes
        return self.facts.merged_passes and self._can_merge_passes

    @property
    def _can_merge_passes(self) -> bool:
        if self.model.experts is None or self.schedule_file is not None:
            return False
        split, family, recompute = self.parallelism, FAMILIES[self.schedule], self.recompute
        return (
            (family.can_merge and (family.has_chunks or split.pipeline == 1))
            and (split.expert > 1 and DISPATCHERS[self.expert_dispatch].overlaps_compute)
            and not self.overlap.shared_expert
            and (recompute.strategy != "full" and recompute.keep_microbatches == 0)
            and self.model.mtp_num_layers <= (split.pipeline > 1)
            and self.memory.zero_stage < 2
        )

    @property
    def delays_weight_gradients(self) -> bool:
        """Whether weight gradients of merged passes run after the exchange that follows them."""
        if self.overlap.delayed_weight_gradients is not None:
            return self.overlap.delayed_weight_gradients
        return self.facts.delayed_weight_gradients and self.merges_passes

    @property
    def stack_defaults(self) -> dict[str, bool | str]:
        return {field: getattr(self, of.resolved) for field, of in STACK_DEFAULTS.items()}

    @property
    def reduces_in_buckets(self) -> bool:
        overlaps = self.overlaps_data_parallel and self.memory.zero_stage < 2
        return overlaps and self.has_replicas

    @property
    def has_replicas(self) -> bool:
        """Whether several ranks hold the same parameters, of experts or of the other layers."""
        split = self.parallelism
        ranks = split.data * split.context
        experts = split.expert * split.ranks_of_expert if self.model.experts else split.tensor
        return self.model_copies * ranks > 1 or ranks * split.tensor > experts

    @property
    def host_issue_s(self) -> float | None:
        """Host time to issue a kernel or a message; None for the value of the hardware profile.

        A value under `hardware` takes precedence over the software stack's value.
        """
        if not self.software.overrides("host_issue") and "issue" in self.hardware.get("host", {}):
            return None
        return self.facts.host_issue

    @property
    def num_gpus(self) -> int:
        split = self.parallelism
        return split.tensor * split.context * split.data * split.pipeline

    @property
    def num_microbatches(self) -> int:
        return self.batch.global_ // (self.batch.micro * self.parallelism.data)

    @property
    def documents(self) -> tuple[tuple[int, int], ...]:
        """Lengths of documents that each sequence packs, with their numbers; empty without them."""
        lengths = self.batch.packed_lengths or ()
        if not lengths:
            return ()
        rounds, left = divmod(self.model.seq_length, sum(lengths))
        numbers = Counter({length: rounds * number for length, number in Counter(lengths).items()})
        for length in lengths:
            numbers[min(length, left)] += 1
            left -= min(length, left)
        return tuple(
            sorted((length, number) for length, number in numbers.items() if length * number)
        )

    @property
    def fully_shards(self) -> bool:
        return self.memory.zero_stage == 3 and self.facts.fully_shard

    @property
    def replicates_adapters(self) -> bool:
        """Whether tensor-parallel ranks hold one matrix of each adapter whole."""
        separate, ranks = self.facts.kernels.separate_projections, self.parallelism.tensor
        return self.model.lora is not None and separate and ranks > 1

    @property
    def lists_tensors(self) -> bool:
        return self.memory.zero_stage == 3 and self.facts.list_collectives

    @property
    def fp8_recipe(self) -> str:
        """The recipe of linear layers in fp8 or fp4 (`workload.fp8`); "" without."""
        if not self.precision.casts:
            return ""
        if self.precision.compute == "fp4":
            return "nvfp4"
        if not self.uses_torchao:
            return self.precision.fp8_recipe
        return "torchao_sharded" if self.parallelism.tensor > 1 else "torchao"

    @property
    def uses_torchao(self) -> bool:
        """Whether fp8 products run as in torchao instead of Transformer Engine."""
        return self.facts.fp8_library == "torchao"

    @property
    def fp8_weights(self) -> Fp8Weights:
        if self.keeps_fp8_parameters and self.memory.zero_stage == 3:
            return "gathered"
        if self.uses_torchao:
            return "cast"
        return "cached" if self.facts.kernels.fp8_columns == "cast" else "rows"

    @property
    def regions_saved_in_16_bits(self) -> frozenset[str]:
        """Recomputed modules whose outputs fp8 products save in 16 bits until recompute drops them.

        Source: Megatron-LM's `set_save_original_input`.
        """
        policy, dropped = self.recompute, {"layernorm", "moe_act"}
        recomputes = self.fp8_recipe and policy.strategy == "selective"
        return frozenset(dropped & {*policy.modules} if recomputes else ())

    @derived
    def schedule_file(self) -> Schedule | None:
        """The schedule of the scenario's file; None if a name is written instead."""
        if not self.schedule.endswith(_SCHEDULE_SUFFIX):
            return None
        return read_schedule(FileVersion.of(self.schedule))

    @derived
    def schedule_family(self) -> ScheduleFamily:
        """What the schedule says of itself; a file with the order of a named one has its family."""
        schedule = self.schedule_file
        if schedule is not None:
            return family_of(schedule)
        options = OrderOptions(self.group_size, self.wants_merged_passes)
        return FAMILIES[self.schedule].with_options(options)

    @property
    def merges_passes(self) -> bool:
        return self.schedule_family.merges

    @property
    def order(self) -> Order:
        split = self.parallelism
        return Order(self.schedule_family, split.pipeline, split.interleave, self.num_microbatches)

    @property
    def group_size(self) -> int | None:
        size = self.parallelism.microbatch_group_size
        return None if size == self.parallelism.pipeline else size

    @derived
    def stage_placement(self) -> StagePlacement:
        return self.schedule_family.placement(self.parallelism.pipeline, self.num_chunks)

    @property
    def model_copies(self) -> int:
        if self.schedule_file is not None:
            return self.stage_placement.copies
        return self.schedule_family.placement(2, 1).copies

    @property
    def reduces_every_microbatch(self) -> bool:
        """Whether each backward pass reduces gradients, with ZeRO stage 2 or 3.

        A single microbatch without a pipeline always does.
        """
        alone = self.num_microbatches == self.parallelism.pipeline == 1
        return self.memory.reduce_every_microbatch or alone

    @property
    def num_chunks(self) -> int:
        return self.parallelism.interleave

    def layers_of_stage(self, stage: int) -> int:
        """Layers of a stage: the number set for it, or an equal share of the remaining layers."""
        layers = self.parallelism.layout_layers
        if layers:
            placed = zip(layers, self.stage_placement.ranks, strict=False)
            return sum(number for number, rank in placed if rank == stage)
        return self.parallelism.layers_of_stage(stage, self.model.num_layers)

    @property
    def chunks_layers(self) -> tuple[int, ...]:
        """[virtual stages of a copy], layers of each chunk; without a layout, stages share evenly.

        Source: Megatron-LM's transformer_block.get_num_layers_to_build.
        """
        split, last = self.parallelism, self.parallelism.pipeline - 1
        if split.layout is not None:
            return split.layout_layers
        sizes = [self.layers_of_stage(min(1, last)) // split.interleave] * split.pipeline
        for end in (0, last):
            sizes[end] = self.layers_of_stage(end) // split.interleave
        placement = self.stage_placement
        return tuple(sizes[rank] for rank in placement.ranks[: placement.stages_per_copy])

    @property
    def chunk_contents(self) -> ChunkContents:
        """What each chunk of a copy contains; without a layout, the loss has token prediction."""
        layers, number = self.chunks_layers, self.model.mtp_num_layers
        letters = self.parallelism.layout_chunks or ("m",)
        places = [place for place, chunk in enumerate(letters, -len(letters)) if "m" in chunk]
        return ChunkContents(layers, len(layers) + places[-1] if number else None, number)

    @property
    def embedding_stages(self) -> tuple[int, ...]:
        """The stages that hold the table of the embedding (`get_embedding_ranks`).

        With several copies of the model, the reduction over replicas adds up all gradients of the
        table: the rank of one copy's embedding is that of another copy's logits.
        """
        placement, model = self.stage_placement, self.model
        ranks = placement.ranks
        if self.model_copies > 1:
            return (ranks[0],)
        holders = {ranks[0], ranks[-1]} if model.tied_embeddings else {ranks[0]}
        if model.mtp_num_layers:
            holders.add(ranks[self.chunk_contents.prediction or 0])
        return tuple(sorted(holders))

    @property
    def stage_sizes(self) -> tuple[int, ...]:
        """The distinct numbers of layers per stage, ascending; at most three without a layout."""
        last = self.parallelism.pipeline - 1
        if layers := self.parallelism.layout_layers:
            stages = range(min(self.parallelism.pipeline, len(layers)))
            return tuple(sorted({*map(self.layers_of_stage, stages)}))
        return tuple(sorted({self.layers_of_stage(stage) for stage in (0, min(1, last), last)}))

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """The distinct numbers of layers per chunk, ascending; at most three without a layout."""
        if layers := self.parallelism.layout_layers:
            return tuple(sorted({*layers}))
        return tuple(sorted({size // self.num_chunks for size in self.stage_sizes}))

    @property
    def strategy(self) -> str:
        """The paper's name of the memory strategy, such as baseline or selective+sequence."""
        recompute = self.recompute.strategy
        recomputed = [] if recompute == "none" else [recompute]
        sequence = ["sequence"] if self.parallelism.sequence_parallel else []
        return "+".join(recomputed + sequence) or "baseline"
