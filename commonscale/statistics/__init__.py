"""Pooled statistics: one module each, its methods side by side, each one function that all roles run over a Pool.

search       the smallest of all sites' 64-bit keys, digit by digit
bounds       powers of two above the magnitudes
extremes     minimum and maximum
quantiles    ranked elements
moments      count, mean and variance
power        the likeliest λ of Yeo-Johnson
identifiers  common identifiers of categorical values
texts        sums over texts read as integers
"""
