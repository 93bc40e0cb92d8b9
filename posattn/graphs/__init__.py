"""Communication graphs of programs and networks: as pictures, as numbers, and how much each edge matters."""
