"""What does an encoding of categories cost a federated model? The paper's Tables 1, 3 and 5 on three of its data sets."""
