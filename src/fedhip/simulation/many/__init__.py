"""Rounds of very many clients: phases 0 and 1 by blocks of rows, phase 3 by batches of clients of one size."""
