"""SentencePiece's BPE, expressed as ordinary BPE merges.

SentencePiece merges, again and again, the neighbouring pair whose union has the highest score, the
leftmost among equals. A merge list does the same when it holds every way to split every piece, the
pieces in falling order of score.
"""

from collections.abc import Mapping


def merges_from_scores(scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Return merges, best first, that reproduce greedy merging over scored pieces.

    Pieces of equal score are ranked in the mapping's order, where SentencePiece would take the
    leftmost in the text.
    """
    merges: list[tuple[str, str]] = []
    for piece in sorted(scores, key=lambda piece: -scores[piece]):
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in scores and right in scores:
                merges.append((left, right))
    return merges
