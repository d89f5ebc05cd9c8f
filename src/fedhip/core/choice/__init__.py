"""What is chosen without test rows: temperatures, class priors, and the rule by which rows left out decide."""
