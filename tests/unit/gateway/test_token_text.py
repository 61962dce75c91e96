import pytest
from tokenizers import Tokenizer, decoders, models

from dualpace.core.errors import CheckpointError
from dualpace.gateway.text.model import ServedModel
from dualpace.gateway.text.token_text import read_token_text
from tests.unit.gateway.conftest import ByteFallbackTokenizer


def _tokenizer(*tokens: str) -> Tokenizer:
    return Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, tokens[0]))


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.CTC(),
        decoders.BPEDecoder(),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁▁", " ")]),
        decoders.Sequence([decoders.ByteLevel(), decoders.Fuse()]),
    ],
    ids=str,
)
def test_a_decoder_that_is_no_concatenation_is_refused(decoder: decoders.Decoder) -> None:
    tokenizer = _tokenizer("a")
    tokenizer.decoder = decoder
    with pytest.raises(CheckpointError, match="not supported"):
        read_token_text(tokenizer)


def test_a_tokenizer_without_decoder_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no decoder"):
        read_token_text(_tokenizer("a"))


def test_single_tokens_read_as_the_library_decodes_them(demo_model: ServedModel) -> None:
    table, tokenizer = demo_model.token_text, demo_model.tokenizer
    for token_id in range(tokenizer.get_vocab_size()):
        assert table.label(token_id) == tokenizer.decode([token_id], skip_special_tokens=False)


def test_every_byte_has_a_token_and_its_piece_is_that_byte(
    byte_fallback: ByteFallbackTokenizer,
) -> None:
    table = read_token_text(byte_fallback)
    for byte in range(256):
        token_id = byte_fallback.token_to_id(f"<0x{byte:02X}>")
        assert token_id is not None
        assert table.piece(token_id) == bytes([byte])


def test_ids_beyond_the_vocabulary_have_no_text(demo_model: ServedModel) -> None:
    assert demo_model.token_text.piece(1 << 40) == b""
    assert demo_model.token_text.label(1 << 40) == ""


@pytest.mark.parametrize("scheme", ["always", "first", "never"])
def test_a_metaspace_decoder_treats_the_first_token_as_the_library_does(scheme: str) -> None:
    tokenizer = _tokenizer("▁a", "▁", "▁▁b", "c")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    table = read_token_text(tokenizer)
    for ids in ([0, 0], [1, 0], [2, 2, 3], [3, 1, 0], [1, 1], []):
        assert table.text(ids) == tokenizer.decode(ids)
