"""scikit-learn estimators from aggregated statistics. Knows neither the network nor the cryptography."""
