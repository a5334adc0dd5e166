"""The page of `simtrain reproduce explore`: the paper's figures with sliders."""

from simtrain.paper.explore.page import explore_document

__all__ = ["explore_document"]
