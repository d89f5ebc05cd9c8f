"""What no option is sensibly beyond: larger numbers overflow in a square, and answers would be silent nonsense."""

#: Of α, β and other penalties, and of weights.
LARGEST = 1e30
