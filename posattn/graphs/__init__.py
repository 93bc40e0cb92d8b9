"""Who hears whom: the graph of a program or a network, as a picture and as numbers, and what its edges are worth."""
