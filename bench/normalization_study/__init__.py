"""Does it matter where normalization parameters come from? The paper's section IV on its three tabular data sets."""
