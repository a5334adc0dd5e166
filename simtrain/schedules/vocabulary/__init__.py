"""How a pipeline splits the vocabulary over its stages: one object per file."""

from simtrain.schedules.vocabulary.passes import VocabularyStep, vocabulary_steps
from simtrain.schedules.vocabulary.registry import SPLITS
from simtrain.schedules.vocabulary.split import VocabularySplit

__all__ = ["SPLITS", "VocabularySplit", "VocabularyStep", "vocabulary_steps"]
