"""Threshold CKKS on OpenFHE: the local steps of every party, without a network.

profiles    parameter sets
skeleton    coefficients on the wire; headers are always our own
reference   the common reference string, from a public seed
context     one profile's objects: encode, encrypt, and what the other modules share
keys        shares of the collective public, relinearization and rotation keys
opening     shares of a decryption and of a refresh (collective bootstrapping)
evaluator   arithmetic on ciphertexts, with its levels checked
sign        composite minimax sign
inverse     1/x on a wide interval
"""
