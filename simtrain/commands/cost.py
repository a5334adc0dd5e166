"""`simtrain cost`."""

from __future__ import annotations

from typing import Annotated

from simtrain.commands.cost_options import (
    Co2Option,
    ContractOption,
    ElectricityOption,
    GoodputOption,
    PriceOption,
    PueOption,
    TokensOption,
    read_terms,
)
from simtrain.commands.import_options import reads_other_tools
from simtrain.commands.output import CsvOption, MarkdownOption, Output, TableOption, show
from simtrain.commands.shared import (
    AllowOomOption,
    JsonOption,
    ScaleOption,
    SetOption,
    SeveralScenarios,
    all_overrides,
    simulate_with_status,
)


@reads_other_tools
def cost(
    scenarios: Annotated[list[str], SeveralScenarios],
    tokens: TokensOption,
    goodput: GoodputOption = 1.0,
    price: PriceOption = None,
    contract: ContractOption = None,
    pue: PueOption = 1.0,
    electricity: ElectricityOption = None,
    co2: Co2Option = None,
    overrides: SetOption = None,
    scale: ScaleOption = None,
    as_json: JsonOption = False,
    as_csv: CsvOption = False,
    as_markdown: MarkdownOption = False,
    table: TableOption = None,
    allow_oom: AllowOomOption = False,
) -> None:
    """Estimate days, GPU-hours, price and energy of a training run.

    Several scenarios are compared in columns; --set applies to all of them.

    Prices and power come from the hardware profile, with their sources, unless --price replaces the
    price. A figure that the profile lacks is listed as missing. --pue, --electricity and --co2 add
    what the energy of the site costs and emits.

    Example: simtrain cost table5_175b_present --tokens 300B --goodput 0.9
    """
    from simtrain.commands.loading import load_scenario
    from simtrain.studies.cost import TrainingCosts, cost_of_result
    from simtrain.views.cost import cost_view

    output = Output(as_json, as_csv, as_markdown, table)
    terms = read_terms(tokens, goodput, price, contract, pue, electricity, co2)
    loaded = [load_scenario(scenario, all_overrides(overrides, scale)) for scenario in scenarios]
    results = [simulate_with_status(scenario, allow_oom) for scenario in loaded]
    costs = [cost_of_result(result, terms) for result in results]
    clusters = [result.scenario.cluster for result in results]
    show(
        output,
        costs[0] if len(costs) == 1 else TrainingCosts(terms.num_tokens, goodput, costs),
        lambda: cost_view(costs, is_table=len(costs) > 1 or as_csv or as_markdown),
        clusters[0] if len(costs) == 1 else clusters,
    )
