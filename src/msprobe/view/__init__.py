"""`msprobe view`: shows a dump, two dumps, results or a running job in the browser.

`material` opens the paths of the command line with the readers of the other packages; `columns` packs the rows into
compact columns; `routes` answers the page's requests; `server` checks who sends them; `export` writes page and data to
one file. The page itself is in `page/`: plain ES modules, no framework, no build step.
"""
