"""Constructions that demonstrate remarks of the paper; of these the library lists only the self-attention program."""
