"""Reports as HTML files that open from disk without a network.

`document` writes sections, data, styles and scripts to one file. `report` lists the sections of a
report on simulated iterations; `sections` has one file for each. `assets` has styles and scripts.
"""
