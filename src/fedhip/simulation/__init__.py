"""Clients, their sum and their models in one process: what each side does in each phase."""
