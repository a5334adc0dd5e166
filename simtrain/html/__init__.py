"""Reports as HTML files that open from disk without a network.

`document` puts sections, data, styles and scripts into one file. `report` chooses the sections of a
report on simulated iterations; each is a file of `sections`. Styles and scripts are in `assets`.
"""
