"""The mathematics of FedHiP."""
