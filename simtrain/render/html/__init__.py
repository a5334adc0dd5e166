"""Reports as HTML files that open from disk without a network.

`document` writes sections, styles and scripts to one file. `view` renders the parts of views.
`report` and `sweep_report` list the sections of reports: views, and pictures that pages draw
themselves. `assets` has styles and scripts.
"""
