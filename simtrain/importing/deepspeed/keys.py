"""Keys of DeepSpeed's JSON: mapped, without effect, or not modelled (keys.toml)."""

from __future__ import annotations

from pathlib import Path

from simtrain.importing.table import WordsFile

TABLE = WordsFile(Path(__file__).with_suffix(".toml")).table()
