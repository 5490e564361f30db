"""What does an encoding of categories cost a federated model? Tables 1, 3 and 5 of the paper, on three data sets."""
