//! Owns the bytes of TLS 1.3 records after the handshake (RFC 8446, section 5): sealed and opened in place.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

use crate::error::{Error, Result};

/// Length of a record's header: type, version, length.
pub const HEADER_BYTES: usize = 5;
/// Most bytes that one record carries.
pub const PLAIN_BYTES_MAX: usize = 1 << 14;
/// Bytes of a record besides its content: header, inner type, tag.
pub const EXTRA_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Longest record of a peer, which may add padding.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAIN_BYTES_MAX + 256;

/// Types of records.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const APPLICATION_DATA: u8 = 23;

const TAG_BYTES: usize = 16;
const VERSION: [u8; 2] = [3, 3];

/// Key of one direction and number of the next record; no number is used twice with one key.
pub struct Key {
    aead: LessSafeKey,
    iv: [u8; NONCE_LEN],
    next: u64,
}

impl Key {
    pub fn new((next, secrets): (u64, ConnectionTrafficSecrets)) -> Result<Self> {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            _ => return Err(Error::lane_failed("TLS chose a cipher that was not offered")),
        };
        let wrong = |_| Error::lane_failed("TLS made a key of another length");
        let unbound = UnboundKey::new(algorithm, key.as_ref()).map_err(wrong)?;
        let iv = iv.as_ref().try_into().map_err(|_| Error::lane_failed("TLS made a short IV"))?;
        Ok(Self { aead: LessSafeKey::new(unbound), iv, next })
    }

    /// Records sealed or opened so far.
    pub fn used(&self) -> u64 {
        self.next
    }

    fn nonce(&mut self) -> Result<Nonce> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[NONCE_LEN - 8..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= number;
        }
        let next = self.next.checked_add(1);
        self.next = next.ok_or_else(|| Error::lane_failed("a TLS key has no number left"))?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Seals `bytes` bytes that lie in `room` behind the header's place; returns the record's length.
    ///
    /// # Panics
    /// If `room` is shorter than `bytes` and `EXTRA_BYTES`, or `bytes` is more than a record carries.
    pub fn seal(&mut self, kind: u8, room: &mut [u8], bytes: usize) -> Result<usize> {
        assert!(bytes <= PLAIN_BYTES_MAX);
        let (header, body) = room[..bytes + EXTRA_BYTES].split_at_mut(HEADER_BYTES);
        let length = u16::try_from(body.len()).map_err(|_| Error::lane_failed("a long record"))?;
        header[0] = APPLICATION_DATA;
        header[1..3].copy_from_slice(&VERSION);
        header[3..].copy_from_slice(&length.to_be_bytes());
        body[bytes] = kind;
        let nonce = self.nonce()?;
        let (plain, tag) = body.split_at_mut(bytes + 1);
        let made = self
            .aead
            .seal_in_place_separate_tag(nonce, Aad::from(&*header), plain)
            .map_err(|_| Error::lane_failed("a TLS record could not be sealed"))?;
        tag.copy_from_slice(made.as_ref());
        Ok(bytes + EXTRA_BYTES)
    }

    /// Opens a complete record; returns its type, and the length of the content behind its header.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(u8, usize)> {
        let nonce = self.nonce()?;
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let plain = self
            .aead
            .open_in_place(nonce, Aad::from(&*header), body)
            .map_err(|_| Error::lane_failed("a TLS record does not verify"))?;
        // Padding consists of zeros behind the type.
        let end = plain.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or_else(|| Error::lane_failed("a TLS record without a type"))?;
        if end > PLAIN_BYTES_MAX {
            return Err(Error::lane_failed("a TLS record carries too much"));
        }
        Ok((plain[end], end))
    }
}

/// Returns the type and the whole length of a record.
///
/// # Errors
/// `LANE_FAILED` if the bytes are no TLS header.
pub fn parse_header(header: [u8; HEADER_BYTES]) -> Result<(u8, usize)> {
    let [kind, major, _, high, low] = header;
    if !(CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&kind) || major != VERSION[0] {
        return Err(Error::lane_failed("lane refused: the peer does not speak TLS here"));
    }
    let bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if bytes > RECORD_BYTES_MAX {
        return Err(Error::lane_failed(format!("a TLS record of {bytes} bytes")));
    }
    Ok((kind, bytes))
}
