"""The ridge in closed form: the sum and the global model, a client's own, and every α and β from one factorisation."""
