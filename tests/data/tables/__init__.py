"""Tables, against pandas and scikit-learn."""
