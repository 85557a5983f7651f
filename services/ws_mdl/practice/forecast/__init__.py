"""A forecaster of a series of numbers: the hours of a day that has not been yet, with what they may deviate."""
