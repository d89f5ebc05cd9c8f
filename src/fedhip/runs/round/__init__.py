"""A round, from what is asked for to what is written: settings, preparing, fitting, recording."""
