//! Owns the bytes of TLS 1.3 records after the handshake (RFC 8446, section 5): sealed and opened in place.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

use crate::error::{Error, Result};

/// Type, version, length.
pub const HEADER_BYTES: usize = 5;
/// What one record may carry.
pub const PLAIN_BYTES_MAX: usize = 1 << 14;
/// What a record is longer than what it carries: header, inner type, tag.
pub const EXTRA_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;
/// Longest record of a peer, which may pad.
pub const RECORD_BYTES_MAX: usize = HEADER_BYTES + PLAIN_BYTES_MAX + 256;

/// What a record is.
pub const CHANGE_CIPHER_SPEC: u8 = 20;
pub const ALERT: u8 = 21;
pub const HANDSHAKE: u8 = 22;
pub const APPLICATION_DATA: u8 = 23;

const TAG_BYTES: usize = 16;
const VERSION: [u8; 2] = [3, 3];

/// The key of one direction, and the number of the next record: no number is used twice with one key.
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

    /// Makes a record of the `bytes` that stand in `room` behind the place of its header; returns its length.
    ///
    /// # Panics
    /// Where `room` is shorter than `bytes` and `EXTRA_BYTES`, or `bytes` more than a record carries.
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

    /// Opens a whole record; returns what it is and the length of what stands behind its header now.
    pub fn open(&mut self, record: &mut [u8]) -> Result<(u8, usize)> {
        let nonce = self.nonce()?;
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let plain = self
            .aead
            .open_in_place(nonce, Aad::from(&*header), body)
            .map_err(|_| Error::lane_failed("a TLS record does not verify"))?;
        // Padding is zeros behind the type.
        let end = plain.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or_else(|| Error::lane_failed("a TLS record without a type"))?;
        if end > PLAIN_BYTES_MAX {
            return Err(Error::lane_failed("a TLS record carries too much"));
        }
        Ok((plain[end], end))
    }
}

/// The type of a record and the length of all of it.
///
/// # Errors
/// `LANE_FAILED` where that is no header of TLS.
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
