"""Reports as HTML files that open from disk without a network.

`document` writes sections, styles and scripts to one HTML file. `view` renders the parts of views,
`timeline` bars over time. `report` and `pages` list the sections of each page.
`assets` has styles and scripts.
"""
