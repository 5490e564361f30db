"""What BatchNorm is worth when sites differ or lie: the study of "Federated BatchNorm"."""
