"""The ways of renting GPUs."""

from typing import Literal, get_args

Contract = Literal["on_demand", "reserved", "spot"]
CONTRACTS: tuple[Contract, ...] = get_args(Contract)
