"""Labeled asymmetric PSI (Cong et al. 2021) on OpenFHE's BFV: the local steps of both sides, without a network.

An item is a 32-byte pseudo-random token, the output of an OPRF whose key the holder has. The querier holds tokens y;
the holder holds tokens z with labels. After one query and one answer the querier has the label of every y that is
also a z.

parameters   from the public bounds of both sets: table, powers, bundles, and the noise they leave
items        a token's field elements, label pad and bins; cuckoo hashing; a seeded source of random bytes
polynomials  products and interpolation modulo 65537, for all slots at once
context      BFV contexts, coefficients on the wire, the sentinel slots
querier      key, query, extraction
holder       database, answer

1. holder   draws a hash seed until its items fit; sends the seed        holder.Database.build
2. querier  cuckoo-hashes: one x a bin; sends Enc(x^1) … Enc(x^d)        querier.gen_query
3. holder   a bundle of bins: M(x) = Π (x - z), L(z) = label ⊕ pad(z);
            sends Enc(M(x)), Enc(L(x))                                   holder.gen_answer
4. querier  M(x) = 0 in all field elements: label = L(x) ⊕ pad(y)        querier.extract

*Differs from the paper*: all powers are sent, so nothing is multiplied but a ciphertext by a plaintext; the query is
encrypted with the secret key, its second polynomials expanded from a seed; spare slots carry a sentinel.

*Reveals* to the holder: nothing but the public bounds; the query is encrypted. To the querier: the labels of common
items, and values that depend on the holder's other tokens (M and L off their roots, the noise of the answer). Those
tokens are pseudo-random to it and their pads stay unknown, so no noise is flooded. Whoever knows a token can read its
label: tokens must come from an OPRF with a key for this pair alone.

Both sides are taken to follow the protocol; wrong bytes are an error, never a wrong label.
"""

from crypto.apsi.holder import Database, gen_answer
from crypto.apsi.items import PlacementError, seeded
from crypto.apsi.parameters import Parameters, ParametersError, choose
from crypto.apsi.querier import NoiseExhaustedError, QueryKey, extract, gen_query

__all__ = [
    "Database",
    "NoiseExhaustedError",
    "Parameters",
    "ParametersError",
    "PlacementError",
    "QueryKey",
    "choose",
    "extract",
    "gen_answer",
    "gen_query",
    "seeded",
]
