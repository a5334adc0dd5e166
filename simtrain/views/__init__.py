"""How results read: each study's result as one view, which every medium renders.

A view is a list of parts (`view.py`). Numbers travel in it as values; a column's kind (`kinds.py`)
says how they become text. Terminal, CSV and Markdown know parts and no results.
"""
