"""What only shows a remark of the paper: constructions that no program of the library needs, and one that it lists."""
