"""`msprobe view`: a dump, two dumps, results or a running job in the browser.

A thin reader. `material` opens what the user names, with the packages that exist; `columns` turns its rows into
compact columns; `routes` answers the page's requests; `server` checks who asks; `export` writes page and data as one
file. The page itself is in `page/`: plain ES modules, no framework, no build step.
"""
