"""The grids that losses and shares are put on before they are summed over clients; sums of whole numbers are exact."""

#: Losses are whole numbers of steps of 2^-32.
LOSS_BITS = 32
#: Shares of rows right are whole numbers of steps of 1/1024.
SHARE_STEPS = 1 << 10
