"""Shares of a decryption and of a refresh. Only the second polynomial of a ciphertext, c1, is needed for either.

decryption  d_i = c1·s_i + flooding noise; c0 + Σ d_i is the message
refresh     (c1·s_i - m_i + noise, a·s_i + m_i + noise) for a fresh mask m_i: added up, the first decrypts to the
            message less the masks, the second encrypts the masks at full height; together they are the message,
            encrypted at full height. `a` is from the common reference string, one label a refresh.

A share is made once: a second one for the same c1 would let its noise be averaged away.
"""

import numpy as np

from crypto.ckks import reference
from crypto.ckks.context import Context
from crypto.ckks.keys import SecretShare
from crypto.ckks.skeleton import Coefficients, Shape


def opening_shape(ctx: Context, towers: int) -> Shape:
    """Of c1 and of a decryption share."""
    return ctx.ciphertext(towers, polynomials=1).shape


def gen_decrypt_share(ctx: Context, share: SecretShare, c1: Coefficients, towers: int) -> Coefficients:
    """d_i."""
    # OpenFHE reads c1 as the second of two polynomials; the first is not used.
    whole = ctx.ciphertext(towers).wrap(np.vstack([np.zeros_like(c1), c1]))
    (made,) = ctx.cc.MultipartyDecryptMain([whole], share.key)
    return ctx.ciphertext(towers, polynomials=1).strip(made)


def refresh_request_shape(ctx: Context) -> Shape:
    """Of the c1 of a refresh."""
    return ctx.ciphertext(ctx.refresh_towers, polynomials=1).shape


def refresh_share_shape(ctx: Context) -> Shape:
    """Of a refresh share: both parts, one after the other."""
    first, second = ctx.refresh_share
    return first.shape + second.shape


def gen_refresh_share(ctx: Context, share: SecretShare, c1: Coefficients, seed: bytes, label: str) -> Coefficients:
    """Both parts of a refresh share."""
    c1_object = ctx.ciphertext(ctx.refresh_towers, polynomials=1).wrap(c1)
    random = refresh_random(ctx, seed, label)
    parts = ctx.cc.IntMPBootDecrypt(share.key, c1_object, random)
    return np.vstack([skeleton.strip(part) for skeleton, part in zip(ctx.refresh_share, parts, strict=True)])


def refresh_random(ctx: Context, seed: bytes, label: str) -> object:
    """The public random element of one refresh."""
    skeleton = ctx.refresh_random
    return skeleton.wrap(reference.expand(skeleton.shape, seed, f"refresh/{label}"))
