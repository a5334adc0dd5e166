"""Time and memory of recompute by module."""

from docs.update.request import Request, seconds, signed_percent, table
from docs.update.simulations import evaluation, run_of
from simtrain.units import format_bytes

POLICIES = {
    "nothing": "none",
    "`layernorm`": "{modules: [layernorm]}",
    "`mla_up_proj`": "{modules: [mla_up_proj]}",
    "`moe_act`": "{modules: [moe_act]}",
    "`shared_experts`": "{modules: [shared_experts]}",
    "`moe`": "{modules: [moe]}",
    "`layernorm` and `mla_up_proj`": "{modules: [layernorm, mla_up_proj]}",
    "whole layers": "full",
}


def modules(request: Request) -> str:
    """Return a table of iteration time and peak memory by recomputed modules."""
    words = tuple(request.words)
    base_s, rows = run_of((*words, "recompute=none")).iteration_time_s, []
    for name, policy in POLICIES.items():
        one = (*words, f"recompute={policy}")
        time_s, peak = run_of(one).iteration_time_s, evaluation(one).peak_bytes
        slower = "" if policy == "none" else signed_percent(time_s / base_s - 1)
        rows.append([name, seconds(time_s), slower, format_bytes(peak)])
    return table(["recompute", "time", "change of time", "peak of the fullest stage"], rows)
