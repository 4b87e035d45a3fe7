"""Everything that reads the databases of a watched run: no framework, no monitor."""
