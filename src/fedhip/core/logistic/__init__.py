"""Logistic regression as rounds of sums: what is summed, the federation's fit, a client's own step."""
