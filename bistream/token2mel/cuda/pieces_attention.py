# mypy: ignore-errors
"""Which rows a program of an attention kernel computes, from the batch's lists; for Triton and Gluon kernels alike."""

import triton
import triton.language as tl

from bistream.token2mel.cuda.batch import TILES_HEAD, SessionField, TileField

TILE_NUMBERS = tl.constexpr(len(TileField))
TILE_SESSION = tl.constexpr(TILES_HEAD + int(TileField.SESSION))
TILE_FIRST = tl.constexpr(TILES_HEAD + int(TileField.FIRST))
SESSION_NUMBERS = tl.constexpr(len(SessionField))
FIRST_ROW = tl.constexpr(int(SessionField.FIRST_ROW))
NEW_ROWS = tl.constexpr(int(SessionField.ROWS))
CHUNKS = tl.constexpr(int(SessionField.CHUNKS))


@triton.jit
def load_tile(tile_ptr, session_ptr, tile):
    """A tile's session, its first row in the session's new part, the session's first packed row, new rows and stored chunks."""
    session = tl.load(tile_ptr + TILE_SESSION + TILE_NUMBERS * tile)
    first = tl.load(tile_ptr + TILE_FIRST + TILE_NUMBERS * tile)
    record = session_ptr + SESSION_NUMBERS * session
    return session, first, tl.load(record + FIRST_ROW), tl.load(record + NEW_ROWS), tl.load(record + CHUNKS)
