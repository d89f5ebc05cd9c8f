"""What is run by hand: pictures, studies, the building of data and releases."""
